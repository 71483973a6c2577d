// llama.cpp's CPU build: several sequences prefilled and then decoded together, a row of each in every call, greedily.
// One JSON object on stdout.
import fs from "node:fs";
import {parseArgs} from "node:util";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const {values: o} = parseArgs({options: {model: {type: "string"}, prompts: {type: "string"}, tokens: {type: "string"},
                                        threads: {type: "string"}, sample: {type: "string", default: "on"}}});
const prompts = JSON.parse(fs.readFileSync(o.prompts, "utf8"));  // [[ids], ...]
const count = Number(o.tokens), threads = Number(o.threads), n = prompts.length;
const log = [];
const llama = await getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false, maxThreads: threads,
                              logLevel: LlamaLogLevel.info, logger: (level, text) => log.push(text)});
const b = llama._bindings;
const model = new b.AddonModel(o.model, {gpuLayers: 0, useMmap: true, addonExports: b});
if (!await model.init()) throw new Error(`${o.model}: llama.cpp could not load it\n${log.join("\n")}`);
const longest = Math.max(...prompts.map((p) => p.length)) + count + 1;
const context = new b.AddonContext(model, {contextSize: longest * n, batchSize: 512, sequences: n, threads,
                                           flashAttention: true, performanceTracking: false});
if (!await context.init()) throw new Error(`llama.cpp could not make a context\n${log.join("\n")}`);
const samplers = prompts.map(() => {
  const sampler = new b.AddonSampler(model);
  sampler.applyConfig({temperature: 0});
  return sampler;
});
// rows: [{sequence, tokens, position}]; the places of each one's last logits.
async function feed(rows) {
  context.initBatch(rows.reduce((sum, r) => sum + r.tokens.length, 0));
  const places = rows.map((r) => context.addToBatch(r.sequence, r.position, Uint32Array.from(r.tokens),
                                                    Uint32Array.from([r.tokens.length - 1]))[0]);
  await context.decodeBatch();
  return places;
}
async function generate(limit) {
  const start = performance.now();
  const next = [];
  // As many whole prompts as a batch takes.
  for (let at = 0; at < n;) {
    const rows = [];
    for (let sum = 0; at < n && sum + prompts[at].length <= 512; sum += prompts[at].length, ++at)
      rows.push({sequence: at, tokens: prompts[at], position: 0});
    const places = await feed(rows);
    for (const [i, r] of rows.entries()) next[r.sequence] = await context.sampleToken(places[i], samplers[r.sequence]);
  }
  const decodeStart = performance.now();
  const out = next.map((t) => [t]);
  for (let step = 1; step < limit; ++step) {
    const places = await feed(next.map((t, i) => ({sequence: i, tokens: [t], position: prompts[i].length + step - 1})));
    for (let i = 0; i < n; ++i) {
      // Without sampling the tokens are the first ones again: decoding alone is timed.
      if (o.sample === "on") next[i] = await context.sampleToken(places[i], samplers[i]);
      out[i].push(next[i]);
    }
  }
  const end = performance.now();
  for (let i = 0; i < n; ++i) context.removeTokenCellsFromSequence(i, 0, -1);
  return {seconds: (end - start) / 1e3, decode_seconds: (end - decodeStart) / 1e3, tokens: out};
}
await generate(8);
const result = await generate(count);
process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
