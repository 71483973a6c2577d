// Shared by the makers: hashes, vocabularies in a compact form.
import { createHash } from 'node:crypto';

export const fnv = (bytes) => {
  let h = 0x811c9dc5;
  for (const b of bytes) h = Math.imul(h ^ b, 0x01000193) >>> 0;
  return h.toString(16).padStart(8, '0');
};
export const hash_of_text = (text) => fnv(Buffer.from(text, 'utf8'));
export const hash_of_ids = (ids) => fnv(ids.flatMap((id) => [id & 255, (id >> 8) & 255, (id >> 16) & 255, (id >> 24) & 255]));
export const sha256 = (text) => createHash('sha256').update(text).digest('hex');

// Long lists of ids are kept as their number and hash.
export const ids_line = (ids) => (ids.length > 160 ? `#${ids.length} ${hash_of_ids(ids)}` : ids.join(' '));

const by_rule = (tokens, id_of, spaces_last) => {
  const order = tokens.map((text, id) => ({ text, id, last: spaces_last && /^▁+$/u.test(text) ? 1 : 0 })).filter((t) => t.text !== null);
  order.sort((a, b) => a.last - b.last || a.id - b.id);
  const merges = [];
  for (const { text } of order) {
    const points = [...text];
    const splits = [];
    for (let k = 1; k < points.length; ++k) {
      const left = points.slice(0, k).join('');
      const right = points.slice(k).join('');
      if (id_of.has(left) && id_of.has(right)) splits.push([left, right]);
    }
    splits.sort((a, b) => id_of.get(a[0]) - id_of.get(b[0]) || id_of.get(a[1]) - id_of.get(b[1]));
    merges.push(...splits);
  }
  return merges;
};

// A tokenizer.json as {skeleton, tokens, lefts}: merges follow from the tokens, either because every token has one merge and they
// stand in the order of their results (lefts: length of the left part in code points, 0 for none), or because all splits of a token
// into two tokens are merges ("splits", in the order of ids; "splits_spaces_last": tokens of U+2581 alone come last). Exact, or it throws.
export function compact(tokenizer) {
  const merges = tokenizer.model.merges.map((m) => (typeof m === 'string' ? m.split(' ') : m));
  const tokens = [];
  for (const [text, id] of Object.entries(tokenizer.model.vocab)) tokens[id] = text;
  for (let i = 0; i < tokens.length; ++i) tokens[i] ??= null;
  const id_of = new Map(Object.entries(tokenizer.model.vocab));
  const skeleton = structuredClone({ ...tokenizer, model: { ...tokenizer.model, vocab: null, merges: null } });
  const same = (list) => list.length === merges.length && list.every((m, i) => m[0] === merges[i][0] && m[1] === merges[i][1]);
  for (const rule of ['splits', 'splits_spaces_last']) {
    if (same(by_rule(tokens, id_of, rule === 'splits_spaces_last'))) return { skeleton, tokens, rule, lefts: [] };
  }
  const lefts = new Array(tokens.length).fill(0);
  let previous = -1;
  for (const [left, right] of merges) {
    const id = id_of.get(left + right);
    if (id <= previous) throw new Error(`merges are not in the order of their results at '${left}' '${right}'`);
    previous = id;
    lefts[id] = [...left].length;
  }
  return { skeleton, tokens, rule: 'lefts', lefts };
}
