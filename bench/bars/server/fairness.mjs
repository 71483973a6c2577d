// Ten short prompts by themselves, and behind one of 1,500 tokens: their time to the first token.
import {readFileSync} from "node:fs";
import {rawEvents, Server} from "../../../tests/server/e2e/server.mjs";

const rounds = Number(process.env.ROUNDS ?? 8);
const source = readFileSync(new URL("../../../docs/guide.md", import.meta.url), "utf8");
const server = await Server.start(["--temp", "0", "--parallel", "12", "-c", "8192", "--no-prefix-cache"]);

async function post(prompt, tokens) {
  const start = performance.now();
  const response = await fetch(`${server.url}/v1/completions`, {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({prompt, max_tokens: tokens, stream: true, ignore_eos: true})});
  if (!response.ok) throw new Error(await response.text());
  let first;
  for await (const event of rawEvents(response)) first ??= performance.now() - start;
  return first / 1e3;
}
const {tokens} = await (await fetch(`${server.url}/tokenize`, {method: "POST", body: JSON.stringify({content: source})})).json();
const longPrompt = tokens.slice(0, 1500);
const shorts = (round) => Array.from({length: 10}, (_, i) => tokens.slice(1500 + 37 * i + round, 1500 + 37 * i + round + 20));
const sorted = (list) => [...list].sort((a, b) => a - b);
const percentile = (list, p) => sorted(list)[Math.min(list.length - 1, Math.ceil(p * list.length) - 1)];

await Promise.all(shorts(99).map((p) => post(p, 4)));  // warm
const alone = [], behind = [], single = [], longs = [];
for (let round = 0; round < rounds; ++round) {
  single.push(await post(shorts(round)[0], 4));
  alone.push(...await Promise.all(shorts(round).map((p) => post(p, 4))));
  const lengthy = post(longPrompt, 4);
  await new Promise((resolve) => setTimeout(resolve, 5 + 7 * round));  // anywhere within its first chunks
  behind.push(...await Promise.all(shorts(round).map((p) => post(p, 4))));
  longs.push(await lengthy);
}
await server.stop();
const [a, b] = [percentile(alone, 0.99), percentile(behind, 0.99)];
const ms = (s) => `${(1e3 * s).toFixed(0)} ms`;
console.log(`time to the first token of ten short prompts, ${rounds} rounds: alone median ${ms(percentile(alone, 0.5))}, P99 ${ms(a)}; ` +
            `behind the long one median ${ms(percentile(behind, 0.5))}, P99 ${ms(b)}; one of them by itself ${ms(percentile(single, 0.5))}`);
console.log(`the long prompt's own: median ${ms(percentile(longs, 0.5))}`);
console.log(`fairness: P99 time to first token behind a 1500-token prompt is ${(b / a).toFixed(2)} x that without it (at most 3)`);
process.exit(b <= 3 * a ? 0 : 1);
