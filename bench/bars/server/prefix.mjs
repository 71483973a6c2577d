// A long prompt twice: what the second computes of it.
import {readFileSync} from "node:fs";
import {metric, Server, settled} from "../../../tests/server/e2e/server.mjs";

const text = readFileSync(new URL("../../../README.md", import.meta.url), "utf8").slice(0, 4800);
const server = await Server.start(["--temp", "0", "--parallel", "2"]);
// Counts are of the last whole step: the one that answered has to be over.
const computed = async () => {
  await settled(server);
  return metric(server, "expertflow:prefill_tokens_total");
};
const ask = async () => {
  const before = await computed();
  const start = performance.now();
  const response = await fetch(`${server.url}/v1/completions`, {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({prompt: text, max_tokens: 1})});
  const answer = await response.json();
  if (!response.ok) throw new Error(JSON.stringify(answer));
  const seconds = (performance.now() - start) / 1e3;
  return {tokens: answer.usage.prompt_tokens, cached: answer.usage.prompt_tokens_details.cached_tokens, seconds,
          computed: await computed() - before, text: answer.choices[0].text};
};
const first = await ask(), second = await ask();
await server.stop();
const share = second.computed / first.computed;
console.log(`first: ${first.computed} of ${first.tokens} tokens computed in ${first.seconds.toFixed(3)} s`);
console.log(`second: ${second.computed} computed, ${second.cached} reported as cached, ${second.seconds.toFixed(3)} s`);
const right = first.computed === first.tokens && second.cached === second.tokens - second.computed && first.text === second.text;
console.log(`prefix: the second prompt computed ${(100 * share).toFixed(1)} % of the first's tokens (at most 10 %)`);
process.exit(right && share <= 0.1 ? 0 : 1);
