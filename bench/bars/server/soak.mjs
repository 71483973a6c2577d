// Many clients for minutes, some of which go away in the middle and some of which send nonsense: every whole answer is
// the one that the model gives alone, every cut stream begins as that does, memory, slots and threads come back.
import {readdirSync, readFileSync} from "node:fs";
import http from "node:http";
import {metric, Server, settled} from "../../../tests/server/e2e/server.mjs";

const clients = Number(process.env.CLIENTS ?? 200), seconds = Number(process.env.SECONDS_LONG ?? 180);
const server = await Server.start(["--parallel", "16", "-c", "8192", "--max-queue", "1000", "-t", "2"]);
const agent = new http.Agent({keepAlive: true, maxSockets: Infinity});
let state = 12345;
const random = () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) / 2 ** 32;
const rss = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`, "utf8"))[1]) / 1024;
// Of the server itself: the kernel's workers for io_uring come and go.
const threads = () => readdirSync(`/proc/${server.pid}/task`)
  .filter((t) => !readFileSync(`/proc/${server.pid}/task/${t}/comm`, "utf8").startsWith("iou-")).length;
setTimeout(() => { console.error("soak: it hangs"); process.exit(1); }, 1e3 * (2 * seconds + 240)).unref();

// events: of a stream, after so many the client goes; within: seconds after which it goes.
function post(body, {events = Infinity, within = Infinity, path = "/v1/completions"} = {}) {
  const cuts = events < Infinity || within < Infinity;
  return new Promise((resolve, reject) => {
    const text = typeof body === "string" ? body : JSON.stringify(body);
    let answer = "";
    const cut = () => { request.destroy(); resolve({cut: true, answer}); };
    const request = http.request({port: server.port, path, method: "POST", agent: cuts ? undefined : agent,
                                  headers: {"Content-Type": "application/json", "Content-Length": Buffer.byteLength(text)}},
      (response) => {
        response.setEncoding("utf8");
        response.on("data", (piece) => {
          answer += piece;
          if (answer.split("\n\ndata: ").length > events) cut();
        });
        response.on("end", () => resolve({status: response.statusCode, answer}));
        response.on("error", (error) => reject(error));
      });
    request.on("error", (error) => (cuts ? resolve({cut: true, answer}) : reject(error)));
    request.end(text);
    if (within < Infinity) setTimeout(cut, 1e3 * within);
  });
}
// whole: false: the last event may be a part of one, and the end is not there.
function textOf(answer, whole = true) {
  let text = "", done = false;
  const events = answer.split("\n\n");
  for (const event of whole ? events : events.slice(0, -1)) {
    if (event === "" || event.startsWith(":")) continue;
    if (event === "data: [DONE]") { done = true; continue; }
    const json = JSON.parse(event.slice(6));
    if (json.error) throw new Error(event);
    text += json.choices[0]?.text ?? "";
  }
  if (whole && !done) throw new Error("a stream without its end");
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
const differs = (found, i) => { ++counts.wrong; console.error(`differs:\n${found}\n${solo[i]}`); };
const times = [];  // seconds that the latest whole answers took
async function client(until) {
  while (performance.now() < until) {
    const kind = random(), i = Math.floor(random() * requests.length), stream = random() < 0.7;
    if (kind < 0.05) {
      const r = await post(nonsense[Math.floor(random() * nonsense.length)]);
      if (r.status !== 400) throw new Error(`nonsense was answered with ${r.status}`);
      JSON.parse(r.answer);
      ++counts.malformed;
    } else if (kind < 0.25) {
      // In less time than any answer took of late it is surely under way.
      const how = stream ? {events: 1 + Math.floor(8 * random())} : {within: Math.min(...times, 1) * (0.1 + 0.4 * random())};
      const r = await post({...requests[i], stream}, how);
      ++counts.cut;
      if (stream && !solo[i].startsWith(textOf(r.answer, false))) differs(r.answer, i);
    } else {
      const begin = performance.now(), r = await post({...requests[i], stream});
      if (r.status !== 200) throw new Error(`${r.status}: ${r.answer}`);
      times.push((performance.now() - begin) / 1e3);
      if (times.length > 64) times.shift();
      const text = stream ? textOf(r.answer) : JSON.parse(r.answer).choices[0].text;
      ++counts.whole;
      if (text !== solo[i]) differs(text, i);
    }
  }
}
const everybody = (time) => Promise.all(Array.from({length: clients}, () => client(performance.now() + 1e3 * time)));
const aborted = () => metric(server, "vllm:request_success_total", 'finished_reason="abort"');
const threadsBefore = threads();
await everybody(Math.min(20, seconds / 4));  // memory that is taken once
const slotsBefore = await settled(server), rssBefore = rss(), abortedBefore = await aborted();
for (const name in counts) if (name !== "wrong") counts[name] = 0;
let threadsUnderLoad = 0, open = 0;
setTimeout(async () => {
  open = await metric(server, "vllm:num_requests_running") + await metric(server, "vllm:num_requests_waiting");
  threadsUnderLoad = threads();
}, 500 * seconds);
await everybody(seconds);
const slotsAfter = await settled(server), rssAfter = rss(), gone = await aborted() - abortedBefore;
const kv = await metric(server, "vllm:kv_cache_usage_perc"), preemptions = await metric(server, "vllm:num_preemptions_total");
agent.destroy();
const code = await server.stop();
const share = gone / (counts.whole + counts.cut + counts.malformed), growth = rssAfter / rssBefore - 1;
console.log(`${clients} clients, ${seconds} s: ${counts.whole} whole answers, ${counts.wrong} unlike their solo runs, ${counts.cut} cut, ` +
            `${gone} of them under way when the server saw it (${(100 * share).toFixed(1)} % of all, at least 10 %), ${counts.malformed} malformed; ` +
            `${preemptions} preemptions; slots ${slotsBefore} and ${slotsAfter} free, KV in use ${kv}; ` +
            `${threadsBefore} threads at the start, ${threadsUnderLoad} with ${open} requests; exit code ${code}`);
console.log(`soak: ${counts.whole} answers, ${counts.wrong} wrong; memory ${rssBefore.toFixed(0)} to ${rssAfter.toFixed(0)} MiB (${(100 * growth).toFixed(1)} %, at most 5 %)`);
process.exit(counts.wrong === 0 && counts.whole > clients && share >= 0.1 && counts.malformed > 0 && growth <= 0.05 && slotsAfter === slotsBefore &&
             kv === 0 && threadsUnderLoad === threadsBefore && open > clients / 2 && code === 0 ? 0 : 1);
