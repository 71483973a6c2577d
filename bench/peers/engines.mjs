// How each engine is run for one measurement: as a process of its own, over the same token ids.
import {spawnSync} from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import {fileURLToPath} from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const root = path.resolve(here, "../..");
export const expertflow = process.env.EXPERTFLOW ?? path.join(root, "build/release/bin/expertflow");

// A process, below a memory limit if one is given; its standard output.
function output(command, args, {env = {}, limit, quiet = true} = {}) {
  if (limit) [command, args] = [path.join(root, "bench/bars/limited"), [String(limit), command, ...args]];
  const r = spawnSync(command, args, {env: {...process.env, ...env}, encoding: "utf8", maxBuffer: 1 << 28});
  if (r.error) throw r.error;
  if (r.status !== 0)
    throw new Error(`${path.basename(command)} ${args.join(" ")}\nended with ${r.signal ?? r.status}: ${r.stderr.slice(-2000)}`);
  if (!quiet) process.stderr.write(r.stderr);
  return r.stdout;
}

// Prefill and decode are tests of their own there: neither has the other's context.
export function runOurs(model, o, {prompt, gen, repetitions, budget = o.budget, limit = o.limit}) {
  const args = ["bench", "-q", "-m", model, "-o", "json", "-r", String(repetitions), "-t", String(o.threads), "--isa", o.isa,
                "--expert-memory", budget, "-p", String(prompt), "-n", String(gen), "--ubatch-size", String(o.ubatch)];
  if (o.text) args.push("--text", o.text);
  return JSON.parse(output(expertflow, args, {limit}));
}

// The first tokens of a text file.
export function tokensOf(model, o, file, count) {
  return JSON.parse(output(expertflow, ["bench", "-q", "-m", model, "-o", "json", "-r", "1", "-p", String(count), "-n", "0",
    "--no-warmup", "--no-peaks", "--expert-memory", o.budget, "--text", file])).token_stream.slice(0, count);
}

export function rateOf(result, kind) {
  const row = result.results.find((r) => (kind === "prefill" ? r.n_prompt : r.n_gen) > 0);
  return row?.tokens_per_second.median;
}

// Turns llama.cpp's repacking of weights off (it copies what it repacks, so that mmap saves nothing): its list of extra
// buffer types is hidden from it. node-llama-cpp has no option for that.
function noRepack() {
  const library = path.join(os.tmpdir(), `expertflow-norepack-${process.getuid()}.so`);
  output("cc", ["-shared", "-fPIC", "-O1", "-o", library, path.join(here, "llamacpp/norepack.c"), "-ldl"]);
  return library;
}

export function runPeer(model, o, {tokens, repetitions, flashAttention, greedy = 0, warmUp = true, limit = o.limit}) {
  const file = path.join(os.tmpdir(), `expertflow-peer-${process.pid}.json`);
  fs.writeFileSync(file, JSON.stringify(tokens));
  try {
    const args = [path.join(here, "llamacpp/peer.mjs"), "--model", model, "--tokens", file, "--threads", String(o.threads),
                  "--repetitions", String(repetitions), "--flash-attention", flashAttention, "--ubatch", String(o.ubatch),
                  "--greedy", String(greedy), ...(warmUp ? [] : ["--no-warm-up"])];
    return JSON.parse(output(process.execPath, args, {limit, env: o.repack ? {} : {LD_PRELOAD: noRepack()}}));
  } finally {
    fs.rmSync(file, {force: true});
  }
}

// The faster of JavaScript's clock and llama.cpp's own: its best foot.
export function peerRate(result, kind, tokens) {
  const seconds = result[`${kind}_seconds`].map((s, i) => Math.min(s, result[`own_${kind}_seconds`][i] || Infinity));
  return median(seconds.map((s) => tokens / s));
}

export function greedyOurs(model, o, prompt, count) {
  const text = output(expertflow, ["run", "-q", "-m", model, "-t", String(o.threads), "--isa", o.isa, "--expert-memory", o.budget,
    "--temp", "0", "-n", String(count), "--token-ids", prompt.join()], {limit: o.limit});
  return text.trim().split(",").map(Number);
}

export function median(values) {
  const v = [...values].sort((a, b) => a - b), n = v.length;
  return n === 0 ? NaN : n % 2 ? v[(n - 1) / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// Drops a file from the page cache, so that whoever reads it next pays for it.
export function dropFromPageCache(file) {
  output("dd", [`if=${file}`, "iflag=nocache", "count=0", "status=none"]);
}
