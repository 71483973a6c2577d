// llama.cpp and expertflow in turns (A B, B A, A B, ...) on the same GGUF, tokens and number of threads: a table of ratios.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import {parseArgs} from "node:util";
import {expertflow, greedyOurs, median, peerRate, rateOf, runOurs, runPeer, tokensOf} from "./engines.mjs";

const usage = `bench/peers/run [options] MODEL.gguf ...
  --threads N            of both engines (default: all processors)
  --pairs N              how often each is run (5)
  --repetitions N        timed repetitions in each run, after a warm-up (3)
  --prompt N, --gen N    tokens of a prompt (512), tokens decoded one by one (128); 0: leave out
  --ubatch N             tokens of one call at most, both engines (512)
  --isa NAME             expertflow's instruction set (auto)
  --expert-memory SIZE   expertflow's budget (100%)
  --text FILE            tokens from a text rather than at random
  --no-repack            llama.cpp leaves its weights mapped, nothing copied
  --greedy N             compare N greedy tokens of both (16)
  --at-least R           fail if a median ratio is below R
  --json FILE            write every sample there`;

const {values, positionals: models} = parseArgs({allowPositionals: true, options: {
  threads: {type: "string", default: String(os.availableParallelism())}, pairs: {type: "string", default: "5"},
  repetitions: {type: "string", default: "3"}, prompt: {type: "string", default: "512"}, gen: {type: "string", default: "128"},
  ubatch: {type: "string", default: "512"}, isa: {type: "string", default: "auto"},
  "expert-memory": {type: "string", default: "100%"}, text: {type: "string"}, "no-repack": {type: "boolean", default: false},
  greedy: {type: "string", default: "16"}, "at-least": {type: "string"}, json: {type: "string"},
  help: {type: "boolean", short: "h", default: false}}});
if (values.help || models.length === 0) {
  console.log(usage);
  process.exit(values.help ? 0 : 2);
}
function number(name) {
  const value = Number(values[name]);
  if (!(value >= 0)) throw new Error(`--${name}: expected a number, found "${values[name]}"`);
  return value;
}
const o = {threads: number("threads"), ubatch: number("ubatch"), isa: values.isa, budget: values["expert-memory"],
           text: values.text, repack: !values["no-repack"]};
const [pairs, repetitions, prompt, gen] = ["pairs", "repetitions", "prompt", "gen"].map(number);
const kinds = [...(prompt ? ["prefill"] : []), ...(gen ? ["decode"] : [])];
const count = {prefill: prompt, decode: gen};
if (!fs.existsSync(expertflow)) throw new Error(`${expertflow} is missing: run make first, or set EXPERTFLOW`);

// A sentence has fewer near-ties than random tokens; a model without tokenizer has no sentence.
function greedyPrompt(model) {
  const file = path.join(os.tmpdir(), `expertflow-peers-${process.pid}.txt`);
  fs.writeFileSync(file, "Once upon a time there was a little girl who lived near the forest. One day she went");
  try {
    return tokensOf(model, o, file, 16);
  } catch {
    return undefined;
  } finally {
    fs.rmSync(file);
  }
}

function compare(model) {
  // The first run of ours draws the tokens, and warms the page cache as the first of theirs does.
  const first = runOurs(model, o, {prompt, gen, repetitions: 1});
  const stream = first.token_stream;
  const tokens = {prompt: stream.slice(0, prompt), decode: stream.slice(0, gen)};
  const variants = ["on", "off"].map((flashAttention) => {
    const run = runPeer(model, o, {tokens, repetitions: 2, flashAttention});
    return {flashAttention, run, rates: Object.fromEntries(kinds.map((k) => [k, peerRate(run, k, count[k])]))};
  });
  const best = Object.fromEntries(kinds.map((k) => [k, variants.reduce((a, b) => b.rates[k] > a.rates[k] ? b : a).flashAttention]));
  const samples = kinds.map(() => ({ours: [], theirs: [], ratios: []}));
  let last;
  for (let i = 0; i < pairs; ++i) {
    const theirRuns = {};
    const theirs = () => {
      for (const fa of new Set(Object.values(best))) theirRuns[fa] = runPeer(model, o, {tokens, repetitions, flashAttention: fa});
    };
    const ours = () => last = runOurs(model, o, {prompt, gen, repetitions});
    for (const run of i % 2 ? [ours, theirs] : [theirs, ours]) run();
    kinds.forEach((kind, k) => {
      const a = rateOf(last, kind), b = peerRate(theirRuns[best[kind]], kind, count[kind]);
      samples[k].ours.push(a), samples[k].theirs.push(b), samples[k].ratios.push(a / b);
    });
  }
  const greedy = number("greedy");
  const agreement = {};
  if (greedy > 0) {
    const head = greedyPrompt(model) ?? stream.slice(0, Math.min(32, stream.length));
    agreement.ours = greedyOurs(model, o, head, greedy);
    agreement.theirs = runPeer(model, o, {tokens: {prompt: head, decode: []}, repetitions: 0, flashAttention: "on", greedy}).greedy;
  }
  return {model, best, samples, agreement, ours: last, theirs: variants[0].run};
}

const all = models.map(compare);
const {machine, commit} = all[0].ours;
console.log(`${machine.cpu}, ${machine.kernel}, ${o.threads} threads; expertflow ${commit}; llama.cpp ${all[0].theirs.release} ` +
  `(node-llama-cpp ${all[0].theirs.node_llama_cpp}${o.repack ? "" : ", no repacking"}); ${pairs} pairs of ${repetitions} repetitions, in turns`);
console.log(`llama.cpp: ${all[0].theirs.system}\n`);
console.log("| model | work | expertflow tok/s | llama.cpp tok/s | flash attention | ratio, median | least to most |");
console.log("| --- | --- | --- | --- | --- | --- | --- |");
let worst = Infinity;
for (const {model, best, samples} of all)
  kinds.forEach((kind, k) => {
    const s = samples[k], ratio = median(s.ratios);
    worst = Math.min(worst, ratio);
    console.log(`| ${model.split("/").at(-1)} | ${kind} ${count[kind]} | ${median(s.ours).toFixed(2)} | ${median(s.theirs).toFixed(2)} ` +
      `| ${best[kind]} | ${ratio.toFixed(3)} | ${Math.min(...s.ratios).toFixed(3)} to ${Math.max(...s.ratios).toFixed(3)} |`);
  });
for (const {model, agreement} of all)
  if (agreement.ours) {
    const equal = agreement.ours.findIndex((t, i) => t !== agreement.theirs[i]);
    console.log(`\n${model.split("/").at(-1)}: greedy tokens ` +
      (equal < 0 ? `all ${agreement.ours.length} equal` : `equal up to number ${equal} (the first near-tie decides)`) +
      `\n  expertflow ${agreement.ours.join(" ")}\n  llama.cpp  ${agreement.theirs.join(" ")}`);
  }
if (values.json) fs.writeFileSync(values.json, JSON.stringify(all, null, 1) + "\n");
if (values["at-least"] && !(worst >= number("at-least"))) {
  console.log(`\nlowest ratio ${worst.toFixed(3)}, asked for ${values["at-least"]}`);
  process.exitCode = 1;
}
