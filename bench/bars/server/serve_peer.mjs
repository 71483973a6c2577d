// Eight clients of the server against eight sequences that llama.cpp decodes together, in turns, on the same GGUF and
// threads. llama.cpp is called in its process, without HTTP and without texts; the faster of with and without its sampler counts.
import {execFileSync} from "node:child_process";
import {readFileSync, writeFileSync} from "node:fs";
import os from "node:os";
import path from "node:path";
import {fileURLToPath} from "node:url";
import {demoModel, Server} from "../../../tests/server/e2e/server.mjs";

const threads = Number(process.env.THREADS ?? os.availableParallelism()), count = Number(process.env.TOKENS ?? 128);
const rounds = Number(process.env.ROUNDS ?? 3), sequences = 8, model = process.env.MODEL ?? demoModel;
const peer = fileURLToPath(new URL("../../peers/llamacpp/batch.mjs", import.meta.url));
const source = readFileSync(new URL("../../../docs/guide.md", import.meta.url), "utf8");
const post = async (server, route, body) => {
  const response = await fetch(server.url + route, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)});
  const json = await response.json();
  if (!response.ok) throw new Error(JSON.stringify(json));
  return json;
};

async function ours(prompts) {
  const server = await Server.start(["--temp", "0", "--parallel", String(sequences), "-c", "8192", "-t", String(threads), "--no-prefix-cache"], model);
  const run = async (tokens) => {
    const start = performance.now();
    const answers = await Promise.all(prompts.map((prompt) => post(server, "/v1/completions", {prompt, max_tokens: tokens, ignore_eos: true})));
    const seconds = (performance.now() - start) / 1e3;
    return {seconds, generated: answers.reduce((sum, a) => sum + a.usage.completion_tokens, 0)};
  };
  await run(8);
  const result = await run(count);
  await server.stop();
  return result.generated / result.seconds;
}
function theirs(prompts) {
  const file = path.join(os.tmpdir(), `expertflow-batch-${process.pid}.json`);
  writeFileSync(file, JSON.stringify(prompts));
  return Math.max(...["on", "off"].map((sample) => {
    const out = JSON.parse(execFileSync(process.execPath, [peer, "--model", model, "--prompts", file, "--tokens", String(count),
      "--threads", String(threads), "--sample", sample], {encoding: "utf8", stdio: ["ignore", "pipe", "ignore"], maxBuffer: 1 << 26}));
    return sequences * count / out.seconds;
  }));
}

const setup = await Server.start(["--parallel", "1"], model);
const {tokens} = await post(setup, "/tokenize", {content: source});
await setup.stop();
const prompts = Array.from({length: sequences}, (_, i) => tokens.slice(100 * i, 100 * i + 32));
const a = [], b = [];
for (let round = 0; round < rounds; ++round) a.push(await ours(prompts)), b.push(theirs(prompts));
const median = (list) => [...list].sort((x, y) => x - y)[Math.floor(list.length / 2)];
console.log(`${sequences} prompts of 32 tokens, ${count} tokens each, ${threads} threads: ours ${a.map((x) => x.toFixed(0)).join(", ")} tok/s over HTTP, ` +
            `llama.cpp ${b.map((x) => x.toFixed(0)).join(", ")} tok/s in its process`);
const ratio = median(a) / median(b);
console.log(`serve-peer: ${median(a).toFixed(0)} tok/s with 8 clients, ${ratio.toFixed(2)} x llama.cpp's 8 sequences together (at least 1.0)`);
process.exit(ratio >= 1 ? 0 : 1);
