// Does llama.cpp open a GGUF, and does it go on from a prompt as expertflow does?
//
//   npm install --prefix FOLDER node-llama-cpp@3.22.1
//   node bench/peers/open_gguf.mjs --llama FOLDER [--expertflow BIN] [--prompt TEXT | --token-ids 1,2,3] [-n 24] FILE.gguf ...
//
// One line a file: what llama.cpp calls its type, and after how many greedy tokens the two part (llama.cpp rounds
// activations to 8 bits, so near-ties end otherwise). Exits with 1 if a file does not open.
import {execFileSync} from "node:child_process";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import path from "node:path";
import {parseArgs} from "node:util";

const {values: o, positionals: files} = parseArgs({
  allowPositionals: true,
  options: {
    llama: {type: "string"},
    expertflow: {type: "string", default: "build/release/bin/expertflow"},
    prompt: {type: "string", default: "Once upon a time there was a little girl who lived near the forest."},
    "token-ids": {type: "string"},
    n: {type: "string", short: "n", default: "24"},
    threads: {type: "string", short: "t", default: "2"},
  },
});
if (!o.llama || files.length === 0) throw new Error("expected --llama FOLDER and GGUF files; see the head of this file");

const require = createRequire(path.resolve(o.llama, "package.json"));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const log = [];
const llama = await getLlama({gpu: false, build: "never", skipDownload: true, progressLogs: false,
                              maxThreads: Number(o.threads), logLevel: LlamaLogLevel.warn,
                              logger: (level, text) => log.push(text.trim())});

// The low-level context: the other one asks a model without tokenizer for texts.
async function ofLlamaWithoutTokenizer(file, ids) {
  const bindings = llama._bindings;
  const model = new bindings.AddonModel(file, {gpuLayers: 0, useMmap: true, addonExports: bindings});
  if (!await model.init()) throw new Error("llama.cpp could not load it");
  const context = new bindings.AddonContext(model, {contextSize: ids.length + Number(o.n) + 1, batchSize: ids.length + 1,
                                                    sequences: 1, threads: Number(o.threads), flashAttention: false});
  if (!await context.init()) throw new Error("llama.cpp could not make a context");
  const sampler = new bindings.AddonSampler(model);
  sampler.applyConfig({temperature: 0});
  const out = [];
  for (let feed = ids, position = 0; out.length < Number(o.n); feed = out.slice(-1)) {
    context.initBatch(feed.length);
    const [last] = context.addToBatch(0, position, Uint32Array.from(feed), Uint32Array.from([feed.length - 1]));
    await context.decodeBatch();
    out.push(await context.sampleToken(last, sampler));
    position += feed.length;
  }
  return {ids, out, text: out.join(","), type: "without tokenizer"};
}

async function ofLlama(file) {
  if (o["token-ids"]) return ofLlamaWithoutTokenizer(file, o["token-ids"].split(",").map(Number));
  const model = await llama.loadModel({modelPath: file, gpuLayers: 0});
  const ids = model.tokenize(o.prompt, true);
  const context = await model.createContext({contextSize: ids.length + Number(o.n) + 1, sequences: 1,
                                             threads: Number(o.threads)});
  const out = [];
  for await (const id of context.getSequence().evaluate(ids, {temperature: 0, yieldEogToken: true})) {
    out.push(id);
    if (out.length >= Number(o.n)) break;
  }
  const text = model.detokenize(out);
  const type = model.typeDescription;
  await model.dispose();
  return {ids, out, text, type};
}

function ofExpertflow(file, ids) {
  const text = execFileSync(o.expertflow, ["run", "-q", "-m", file, "--token-ids", ids.join(","), "-n", o.n, "--temp", "0",
                                           "-t", o.threads], {encoding: "utf8", env: {PATH: process.env.PATH}});
  return text.trim().split(",").map(Number);
}

let failed = 0;
for (const file of files) {
  log.length = 0;
  try {
    const theirs = await ofLlama(file);
    const ours = ofExpertflow(file, theirs.ids);
    let same = 0;
    while (same < theirs.out.length && theirs.out[same] === ours[same]) ++same;
    console.log(`${path.basename(file)}: opened as "${theirs.type}"; ${same} of ${theirs.out.length} greedy tokens equal: ` +
                JSON.stringify(theirs.text));
    for (const line of log) if (line) console.log(`  llama.cpp: ${line}`);
  } catch (error) {
    ++failed;
    console.log(`${path.basename(file)}: FAILED: ${error.message}`);
    for (const line of log) console.log(`  llama.cpp: ${line}`);
  }
}
process.exit(failed ? 1 : 0);
