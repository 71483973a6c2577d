// The program as an operator runs it: traces at a collector, a profile that one run leaves to the next, the report.
import assert from "node:assert/strict";
import {createHash} from "node:crypto";
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import {after, before, test} from "node:test";
import {demoModel, metric, Server} from "./server.mjs";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "expertflow-observed-"));
const received = [];
let collector, endpoint;

before(async () => {
  collector = http.createServer((request, response) => {
    let body = "";
    request.on("data", (part) => (body += part)).on("end", () => {
      received.push({url: request.url, type: request.headers["content-type"], body: JSON.parse(body)});
      response.writeHead(200, {"Content-Type": "application/json"}).end("{}");
    });
  });
  await new Promise((resolve) => collector.listen(0, "127.0.0.1", resolve));
  endpoint = `http://127.0.0.1:${collector.address().port}`;
});
after(() => {
  collector.close();
  fs.rmSync(folder, {recursive: true});
});

const complete = (server, body, headers = {}) => fetch(`${server.url}/v1/completions`, {
  method: "POST", headers: {"Content-Type": "application/json", ...headers},
  body: JSON.stringify({prompt: "Once upon a time", max_tokens: 24, temperature: 0, ...body})});
const digest = (file) => createHash("sha256").update(fs.readFileSync(file)).digest("hex");

test("traces wait for nobody and are sent before the end", async () => {
  const server = await Server.start(["--otlp-endpoint", endpoint]);
  const trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const response = await complete(server, {}, {traceparent: `00-${trace}-00f067aa0ba902b7-01`});
  assert.equal(response.status, 200);
  assert.match(response.headers.get("traceparent"), new RegExp(`^00-${trace}-[0-9a-f]{16}-01$`));
  const {usage} = await response.json();
  assert.equal(await server.stop(), 0);  // within the five seconds that a batch may wait
  assert.equal(received.length, 1);
  assert.equal(received[0].url, "/v1/traces");
  const {resource, scopeSpans} = received[0].body.resourceSpans[0];
  const attribute = (of, key) => Object.values(of.attributes.find((a) => a.key === key).value)[0];
  assert.equal(attribute(resource, "service.name"), "expertflow");
  assert.equal(attribute(resource, "process.pid"), String(server.pid));
  const {spans} = scopeSpans[0];
  assert.deepEqual(spans.map((s) => s.name).sort(),
    ["POST /v1/completions", "decode", "prefill", "queue", "text_completion demo-Q5_K_M.gguf"]);
  for (const span of spans) assert.equal(span.traceId, trace);
  const answer = spans.find((s) => s.name.startsWith("text_completion"));
  assert.equal(attribute(answer, "gen_ai.usage.output_tokens"), String(usage.completion_tokens));
  // The clock of the machine, give or take what the test takes.
  assert.ok(Math.abs(Number(answer.endTimeUnixNano) / 1e6 - Date.now()) < 60_000);
});

test("a run leaves its use of experts to the next, outside of the model's folder", async () => {
  const profile = path.join(folder, "profiles", "demo.json");
  const args = ["--expert-memory", "25%", "--expert-profile", profile, "--cold", "2", "--sla-ttft", "30", "--sla-itl", "30"];
  const beside = fs.readdirSync(path.dirname(demoModel)), before = digest(demoModel);
  const cold = await Server.start(args);
  assert.match(cold.log, /batch: the KV cache holds \d+ sequences/);
  assert.match(cold.log, /warm-up \(tokens\): \d+ experts near/);  // nothing is known yet
  const text = (await (await complete(cold, {})).json()).choices[0].text;
  const misses = await metric(cold, "expertflow:expert_misses_total");
  assert.equal(await cold.stop(), 0);
  assert.ok(fs.existsSync(profile));
  assert.deepEqual(fs.readdirSync(path.dirname(demoModel)), beside);
  assert.equal(digest(demoModel), before);

  const warm = await Server.start(args);
  assert.match(warm.log, /warm-up \(profile\): \d+ experts near after [\d.]+ s, [\d.]+ % of the accesses to be expected/);
  assert.ok(await metric(warm, "expertflow:warm_up_experts") > 48);
  for (let i = 0; i < 4; ++i) assert.equal((await (await complete(warm, {})).json()).choices[0].text, text);
  assert.ok(await metric(warm, "expertflow:expert_misses_total") < 4 * misses);
  const report = await (await fetch(`${warm.url}/report`)).json();
  assert.equal(report.warm_up.how, "profile");
  assert.deepEqual([report.cold.requests, report.warm.requests], [2, 2]);
  assert.deepEqual([report.cold.sla_share, report.warm.sla_share], [1, 1]);
  for (const phase of [report.cold, report.warm])
    for (const what of ["ttft_seconds", "itl_seconds"])
      assert.ok(phase[what].p50 > 0 && phase[what].p50 <= phase[what].p95 && phase[what].p95 <= phase[what].p99);
  assert.equal(await warm.stop(), 0);
});

test("what cannot be read is refused at once", async () => {
  for (const [args, text] of [[["--otlp-endpoint", "https://collector:4318"], /--otlp-endpoint: TLS is not spoken here/],
    [["--otlp-sample", "2"], /--otlp-sample: expected 0 to 1, found 2/], [["--sla-itl", "0"], /--sla-itl: expected more than 0/]])
    await assert.rejects(Server.start(args), (error) => /ended with 2/.test(error.message) && text.test(error.message));
});
