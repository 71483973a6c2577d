// Expected ids of the GGUF route: node llama_cpp.mjs OUT DEMO_GGUF, after make.mjs. Writes vocabulary-only GGUFs (the demo's vocabulary
// under every pre-tokenizer, Llama-2's as "llama") and asks llama.cpp (node-llama-cpp) for the ids.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { ids_line } from './common.mjs';

const { getLlama, LlamaLogLevel } = await import('node-llama-cpp');
const out = process.argv[2];
const strings = JSON.parse(readFileSync(`${out}/components.json`, 'utf8')).strings;
const folder = mkdtempSync(`${tmpdir()}/goldens-`);

// A small GGUF v3 writer: strings, bools, uint32, arrays of strings, float32, int32. No tensors.
function gguf(path, entries) {
  const parts = [];
  const u32 = (v) => { const b = Buffer.alloc(4); b.writeUInt32LE(v); parts.push(b); };
  const u64 = (v) => { const b = Buffer.alloc(8); b.writeBigUInt64LE(BigInt(v)); parts.push(b); };
  const str = (v) => { const b = Buffer.from(v, 'utf8'); u64(b.length); parts.push(b); };
  parts.push(Buffer.from('GGUF')); u32(3); u64(0); u64(entries.length);
  for (const [key, type, value] of entries) {
    str(key);
    if (type === 'str') { u32(8); str(value); }
    if (type === 'u32') { u32(4); u32(value); }
    if (type === 'bool') { u32(7); parts.push(Buffer.from([value ? 1 : 0])); }
    if (type === 'strs') { u32(9); u32(8); u64(value.length); value.forEach(str); }
    if (type === 'f32s') { u32(9); u32(6); u64(value.length); parts.push(Buffer.from(new Float32Array(value).buffer)); }
    if (type === 'i32s') { u32(9); u32(5); u64(value.length); parts.push(Buffer.from(new Int32Array(value).buffer)); }
  }
  writeFileSync(path, Buffer.concat(parts));
}

function vocabulary(name) {
  const skeleton = JSON.parse(readFileSync(`${out}/${name}/skeleton.json`, 'utf8'));
  const tokens = JSON.parse(readFileSync(`${out}/${name}/tokens.json`, 'utf8'));
  const [rule, line] = readFileSync(`${out}/${name}/merges.txt`, 'utf8').split('\n');
  for (const token of skeleton.added_tokens) tokens[token.id] = token.content;
  const merges = [];
  if (rule === 'lefts') line.split(' ').forEach((n, id) => { if (n > 0) { const p = [...tokens[id]]; merges.push(p.slice(0, n).join('') + ' ' + p.slice(n).join('')); } });
  const types = tokens.map(() => 1);
  for (const token of skeleton.added_tokens) types[token.id] = token.special ? 3 : 4;
  return { tokens, merges, types };
}

const llama = await getLlama({ gpu: false, build: 'never', usePrebuiltBinaries: true, skipDownload: true, logLevel: LlamaLogLevel.error });
async function ids_of(entries) {
  const path = `${folder}/vocab.gguf`;
  gguf(path, entries);
  const model = await llama.loadModel({ modelPath: path, vocabOnly: true });
  const lines = strings.map((s) => [ids_line(model.tokenize(s, true)), ids_line(model.tokenize(s, false))]);
  await model.dispose();
  return lines;
}

const head = [['general.architecture', 'str', 'qwen3moe'], ['general.name', 'str', 'vocabulary']];
const demo = vocabulary('demo');
const pres = ['default', 'llama-bpe', 'glm4', 'qwen2', 'qwen35', 'deepseek-llm', 'deepseek-coder', 'deepseek-v3', 'gpt-4o', 'tekken', 'kimi-k2', 'gpt-2', 'olmo', 'starcoder', 'refact', 'falcon', 'bloom', 'viking', 'bailingmoe', 'seed-coder'];
const result = { strings, bpe: {}, spm: {} };
for (const pre of pres) {
  const lines = await ids_of([...head, ['tokenizer.ggml.model', 'str', 'gpt2'], ['tokenizer.ggml.pre', 'str', pre], ['tokenizer.ggml.tokens', 'strs', demo.tokens], ['tokenizer.ggml.token_type', 'i32s', demo.types], ['tokenizer.ggml.merges', 'strs', demo.merges], ['tokenizer.ggml.eos_token_id', 'u32', 0], ['tokenizer.ggml.add_bos_token', 'bool', false]]);
  result.bpe[pre] = lines.map((l) => l[0]);
}
const llama2 = vocabulary('llama2');
llama2.types = llama2.tokens.map((t, i) => (i === 0 ? 2 : i < 3 ? 3 : /^<0x[0-9A-F]{2}>$/.test(t) ? 6 : 1));
const scores = llama2.tokens.map((_, i) => (i < 259 ? 0 : -(i - 259)));
for (const [name, extra] of [['plain', []], ['no_space_prefix', [['tokenizer.ggml.add_space_prefix', 'bool', false]]]]) {
  const lines = await ids_of([...head, ['tokenizer.ggml.model', 'str', 'llama'], ['tokenizer.ggml.tokens', 'strs', llama2.tokens], ['tokenizer.ggml.scores', 'f32s', scores], ['tokenizer.ggml.token_type', 'i32s', llama2.types], ['tokenizer.ggml.bos_token_id', 'u32', 1], ['tokenizer.ggml.eos_token_id', 'u32', 2], ['tokenizer.ggml.unknown_token_id', 'u32', 0], ...extra]);
  result.spm[name] = { special: lines.map((l) => l[0]), plain: lines.map((l) => l[1]) };
}
writeFileSync(`${out}/llama_cpp.json`, JSON.stringify(result));
rmSync(folder, { recursive: true });
process.exit(0);
