// Many clients for minutes, some of which go away in the middle and some of which send nonsense: every whole answer is
// the one that the model gives alone, memory comes back, slots come back.
import {readFileSync} from "node:fs";
import http from "node:http";
import {metric, Server} from "../../../tests/server/e2e/server.mjs";

const clients = Number(process.env.CLIENTS ?? 200), seconds = Number(process.env.SECONDS_LONG ?? 180);
const server = await Server.start(["--parallel", "16", "-c", "8192", "--max-queue", "1000"]);
const agent = new http.Agent({keepAlive: true, maxSockets: Infinity});
let state = 12345;
const random = () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) / 2 ** 32;
const rss = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`, "utf8"))[1]) / 1024;

// cutAfter: bytes of the answer after which the client goes; 0: before any.
function post(body, {cutAfter = Infinity, path = "/v1/completions"} = {}) {
  return new Promise((resolve, reject) => {
    const text = typeof body === "string" ? body : JSON.stringify(body);
    const request = http.request({port: server.port, path, method: "POST", agent: cutAfter === Infinity ? agent : undefined,
                                  headers: {"Content-Type": "application/json", "Content-Length": Buffer.byteLength(text)}},
      (response) => {
        let answer = "";
        response.setEncoding("utf8");
        response.on("data", (piece) => {
          answer += piece;
          if (answer.length >= cutAfter) request.destroy(), resolve({cut: true});
        });
        response.on("end", () => resolve({status: response.statusCode, answer}));
        response.on("error", () => resolve({cut: true}));
      });
    request.on("error", (error) => (cutAfter === Infinity ? reject(error) : resolve({cut: true})));
    request.end(text);
    if (cutAfter === 0) setTimeout(() => { request.destroy(); resolve({cut: true}); }, 30 * random());
  });
}
function textOf(answer) {
  let text = "", done = false;
  for (const event of answer.split("\n\n")) {
    if (event === "" || event.startsWith(":")) continue;
    if (event === "data: [DONE]") { done = true; continue; }
    const json = JSON.parse(event.slice(6));
    if (json.error) throw new Error(event);
    text += json.choices[0]?.text ?? "";
  }
  if (!done) throw new Error("a stream without its end");
  return text;
}

const beginnings = ["Once upon a time there was a little girl", "The old man and his dog went to the river, and",
  "In the morning the king said to his three sons:", "A function returns a value when", "She opened the door slowly and saw",
  "The history of the city begins with", "One day a cat met a bird in the garden.", "Long ago, in a land far away,"];
const requests = beginnings.flatMap((prompt, i) => [
  {prompt, max_tokens: 24 + 4 * i, temperature: 0},
  {prompt: `${prompt} ${beginnings[(i + 3) % 8]}`, max_tokens: 40, temperature: 1, seed: i},
  {prompt: beginnings.slice(0, 1 + i).join(" "), max_tokens: 16, temperature: 0.7, seed: 100 + i}]);
const solo = [];
for (const request of requests) solo.push(textOf((await post({...request, stream: true})).answer));

const counts = {whole: 0, cut: 0, malformed: 0, wrong: 0};
const nonsense = ["{", "[]", '{"prompt": 5}', '{"prompt": "x", "max_tokens": "many"}', "\xff\xfe", '{"prompt": []}'];
async function client(until) {
  while (performance.now() < until) {
    const kind = random(), i = Math.floor(random() * requests.length), stream = random() < 0.7;
    if (kind < 0.05) {
      const r = await post(nonsense[Math.floor(random() * nonsense.length)]);
      if (r.status !== 400) throw new Error(`nonsense was answered with ${r.status}`);
      JSON.parse(r.answer);
      ++counts.malformed;
    } else if (kind < 0.15) {
      await post({...requests[i], stream}, {cutAfter: random() < 0.4 ? 0 : 1 + Math.floor(random() * 3000)});
      ++counts.cut;
    } else {
      const r = await post({...requests[i], stream});
      if (r.status !== 200) throw new Error(`${r.status}: ${r.answer}`);
      const text = stream ? textOf(r.answer) : JSON.parse(r.answer).choices[0].text;
      ++counts.whole;
      if (text !== solo[i]) ++counts.wrong, console.error(`differs:\n${text}\n${solo[i]}`);
    }
  }
}
const everybody = (time) => Promise.all(Array.from({length: clients}, () => client(performance.now() + 1e3 * time)));
const settled = async () => {
  for (;;) {
    const slots = await (await fetch(`${server.url}/slots`)).json();
    if (slots.every((s) => !s.is_processing) && await metric(server, "vllm:num_requests_waiting") === 0) return slots.length;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
await everybody(Math.min(20, seconds / 4));  // memory that is taken once
const slotsBefore = await settled(), rssBefore = rss();
await everybody(seconds);
const slotsAfter = await settled(), rssAfter = rss();
const kv = await metric(server, "vllm:kv_cache_usage_perc"), preemptions = await metric(server, "vllm:num_preemptions_total");
agent.destroy();
const code = await server.stop();
console.log(`${clients} clients, ${seconds} s: ${counts.whole} whole answers, ${counts.wrong} unlike their solo runs, ${counts.cut} cut, ` +
            `${counts.malformed} malformed; ${preemptions} preemptions; slots ${slotsBefore} and ${slotsAfter} free, KV in use ${kv}; exit code ${code}`);
const growth = rssAfter / rssBefore - 1;
console.log(`soak: ${counts.whole} answers, ${counts.wrong} wrong; memory ${rssBefore.toFixed(0)} to ${rssAfter.toFixed(0)} MiB (${(100 * growth).toFixed(1)} %, at most 5 %)`);
process.exit(counts.wrong === 0 && counts.whole > clients && counts.cut > 0 && growth <= 0.05 && slotsAfter === slotsBefore && kv === 0 && code === 0 ? 0 : 1);
