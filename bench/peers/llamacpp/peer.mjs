// llama.cpp's CPU build through node-llama-cpp's low-level context: the same token ids, no sampling in the timed part.
// One JSON object on stdout. Timed from JavaScript (one promise a decode call, some 30 microseconds) and by llama.cpp
// itself; the caller takes the faster.
import fs from "node:fs";
import {parseArgs} from "node:util";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const {values: o} = parseArgs({
  options: {
    model: {type: "string"},
    tokens: {type: "string"},                       // file: {"prompt": [ids], "decode": [ids], "warm_up": [ids]}
    threads: {type: "string"},
    repetitions: {type: "string", default: "1"},
    "flash-attention": {type: "string", default: "on"},
    mmap: {type: "string", default: "on"},
    ubatch: {type: "string", default: "512"},
    greedy: {type: "string", default: "0"},         // tokens to generate from the prompt, untimed
    "no-warm-up": {type: "boolean", default: false},
  },
});

function flag(name) {
  if (o[name] !== "on" && o[name] !== "off") throw new Error(`--${name}: expected on or off, found "${o[name]}"`);
  return o[name] === "on";
}

const tokens = JSON.parse(fs.readFileSync(o.tokens, "utf8"));
const threads = Number(o.threads), ubatch = Number(o.ubatch), repetitions = Number(o.repetitions);
const greedyTokens = Number(o.greedy);
const {prompt, decode} = tokens;
const log = [];
const llama = await getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false, maxThreads: threads,
                              logLevel: LlamaLogLevel.info, logger: (level, text) => log.push(text)});
const bindings = llama._bindings;
const setupStart = performance.now();
const model = new bindings.AddonModel(o.model, {gpuLayers: 0, useMmap: flag("mmap"), addonExports: bindings});
if (!await model.init()) throw new Error(`${o.model}: llama.cpp could not load it\n${log.join("\n")}`);
const contextSize = prompt.length + Math.max(decode.length, tokens.warm_up?.length ?? 0, greedyTokens) + 1;
const context = new bindings.AddonContext(model, {
  contextSize, batchSize: Math.min(ubatch, contextSize), sequences: 1, threads, flashAttention: flag("flash-attention"),
  performanceTracking: true});
if (!await context.init()) throw new Error(`llama.cpp could not make a context\n${log.join("\n")}`);
if (context.getThreads() !== threads) throw new Error(`asked for ${threads} threads, llama.cpp has ${context.getThreads()}`);
const setupSeconds = (performance.now() - setupStart) / 1e3;

// Returns the place of the last row's logits.
async function feed(ids, position) {
  context.initBatch(ids.length);
  const [last] = context.addToBatch(0, position, Uint32Array.from(ids), Uint32Array.from([ids.length - 1]));
  await context.decodeBatch();
  return last;
}
async function feedAll(ids, position = 0) {
  let last;
  for (let at = 0; at < ids.length; at += ubatch) last = await feed(ids.slice(at, at + ubatch), position + at);
  return last;
}
const forget = (from = 0) => context.removeTokenCellsFromSequence(0, from, -1);

// Log lines come through the event loop.
const logged = () => new Promise((resolve) => setTimeout(resolve, 20));

// What llama.cpp counted since the last call: [seconds of prompt evaluation, seconds of single tokens].
async function ownSeconds() {
  await logged();
  log.length = 0;
  context.printTimings();
  await logged();
  const text = log.join("\n");
  const milliseconds = (name) => Number(new RegExp(`(?<!prompt )${name} time =\\s*([\\d.]+) ms`).exec(text)?.[1] ?? NaN);
  return [milliseconds("prompt eval") / 1e3, milliseconds("eval") / 1e3];
}
async function timed(body) {
  await ownSeconds();
  const start = performance.now();
  await body();
  const seconds = (performance.now() - start) / 1e3;
  return {seconds, own: await ownSeconds()};
}

async function greedy(count) {
  const sampler = new bindings.AddonSampler(model);
  sampler.applyConfig({temperature: 0});
  const out = [];
  let last = await feedAll(prompt);
  while (out.length < count) {
    out.push(await context.sampleToken(last, sampler));
    if (out.length < count) last = await feed([out.at(-1)], prompt.length + out.length - 1);
  }
  sampler.dispose();
  forget();
  return out;
}

const result = {engine: "llama.cpp", release: JSON.parse(fs.readFileSync(new URL(
    "node_modules/node-llama-cpp/llama/binariesGithubRelease.json", import.meta.url), "utf8")).release,
  node_llama_cpp: JSON.parse(fs.readFileSync(new URL("node_modules/node-llama-cpp/package.json", import.meta.url),
    "utf8")).version,
  model: o.model, threads, flash_attention: o["flash-attention"], mmap: o.mmap, ubatch, setup_seconds: setupSeconds,
  system: llama.systemInfo, buffers: log.filter((line) => /model buffer size/.test(line)),
  prefill_seconds: [], decode_seconds: [], own_prefill_seconds: [], own_decode_seconds: []};
if (!o["no-warm-up"]) {
  if (prompt.length) await feedAll(prompt), forget();
  for (const [at, token] of (tokens.warm_up ?? decode.slice(0, 8)).entries()) await feed([token], at);
  forget();
}
for (let i = 0; i < repetitions; ++i) {
  if (prompt.length) {
    const {seconds, own} = await timed(() => feedAll(prompt));
    result.prefill_seconds.push(seconds), result.own_prefill_seconds.push(own[0]);
    forget();
  }
  if (decode.length) {
    const {seconds, own} = await timed(async () => {
      for (let at = 0; at < decode.length; ++at) await feed([decode[at]], at);
    });
    result.decode_seconds.push(seconds), result.own_decode_seconds.push(own[1]);
    forget();
  }
}
if (greedyTokens > 0) result.greedy = await greedy(greedyTokens);
process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
