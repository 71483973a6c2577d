// The measuring part of larger_than_memory.sh: MODEL TOKENS REPETITIONS PEER_TOKENS.
import fs from "node:fs";
import os from "node:os";
import {dropFromPageCache, peerRate, runOurs, runPeer} from "../peers/engines.mjs";

process.on("uncaughtException", (error) => {
  console.log(`bar larger-than-memory: SHORT: ${error.message}`);
  process.exit(1);
});
const [model, tokens, repetitions, peerTokens] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const size = fs.statSync(model).size, limit = Math.floor(size / 2);
if (size < 6e9) throw new Error(`${model} has ${size} bytes, expected 6 GB or more`);
const o = {threads: os.availableParallelism(), ubatch: 512, isa: "auto", budget: "auto", text: "docs/guide.md", limit, repack: false};
const gb = (bytes) => (bytes / 1e9).toFixed(2);

// Pages cached by others would be free of charge: each run starts without.
function fresh(run) {
  dropFromPageCache(model);
  return run();
}
console.log(`${model}: ${gb(size)} GB, limit ${gb(limit)} GB, ${o.threads} threads`);
const ours = fresh(() => runOurs(model, o, {prompt: 0, gen: tokens, repetitions}));
const row = ours.results[0], disk = row.peaks.disk.gb_s * 1e9;
const stream = ours.token_stream;
// As ours: a warm-up on other tokens first.
const theirs = fresh(() => runPeer(model, o, {repetitions: 1, flashAttention: "on",
  tokens: {prompt: [], warm_up: stream.slice(0, Math.min(tokens, 8)), decode: stream.slice(tokens, tokens + peerTokens)}}));
// The same work with every expert in memory says what computing takes.
const free = os.freemem() > size * 1.2;
const compute = free ? runOurs(model, {...o, limit: undefined}, {prompt: 0, gen: tokens, repetitions, budget: "100%"}) : null;

const rate = row.tokens_per_second.median, peerRateOf = peerRate(theirs, "decode", peerTokens);
const ratio = rate / peerRateOf, time = 1 / rate;
const computing = compute ? 1 / compute.results[0].tokens_per_second.median : time - row.experts.stall_seconds_per_token;
const missing = row.experts.bytes_read_per_token / disk, clairvoyant = row.experts.clairvoyant_bytes_per_token / disk;
const bound = Math.max(computing, missing);
console.log(`expertflow ${rate.toFixed(3)} tok/s: ${(1e3 * time).toFixed(0)} ms a token; hits ${(100 * row.experts.hit_rate).toFixed(1)} %, ` +
  `${(row.experts.bytes_read_per_token / 1e6).toFixed(0)} MB missed a token, waited ${(1e3 * row.experts.stall_seconds_per_token).toFixed(0)} ms, ` +
  `budget ${gb(row.expert_budget_bytes)} GB`);
console.log(`llama.cpp ${peerRateOf.toFixed(3)} tok/s by mmap without repacking (${peerTokens} tokens after a warm-up): ${theirs.buffers.join("; ")}`);
console.log(`a token: computing ${(1e3 * computing).toFixed(0)} ms (${compute ? "measured with every expert in memory" : "time less waiting"}), ` +
  `missed bytes at the disk's peak of ${gb(disk)} GB/s ${(1e3 * missing).toFixed(0)} ms, a clairvoyant cache's ${(1e3 * clairvoyant).toFixed(0)} ms`);
const ok = ratio >= 5 && time <= 1.2 * bound;
console.log(`bar larger-than-memory: ${ok ? "ok" : "SHORT"}: ${ratio.toFixed(1)} x llama.cpp (5 asked for), ` +
  `token time ${(time / bound).toFixed(2)} x max(compute, missed / disk) (1.2 allowed), ` +
  `${(time / Math.max(computing, clairvoyant)).toFixed(2)} x with a clairvoyant cache`);
process.exitCode = ok ? 0 : 1;
