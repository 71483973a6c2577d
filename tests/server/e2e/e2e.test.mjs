// OpenAI's own client, and a client that reads the bytes itself, against the server on the bundled model.
import assert from "node:assert/strict";
import {after, before, test} from "node:test";
import OpenAI from "openai";
import {spawn} from "node:child_process";
import {binary, demoModel, metric, rawEvents, Server, settled} from "./server.mjs";

const key = "e2e-key";
const story = "Once upon a time there was a little girl who lived near the forest.";
const ask = [{role: "user", content: "Continue: the cat went to the sea and"}];
let server, client;

before(async () => {
  server = await Server.start(["--temp", "0", "--parallel", "4"]);
  client = new OpenAI({apiKey: key, baseURL: `${server.url}/v1`, maxRetries: 0});
});
after(async () => assert.equal(await server.stop(), 0));

const complete = (more = {}) => client.completions.create({model: "demo", prompt: story, max_tokens: 24, ...more});
const chat = (more = {}) => client.chat.completions.create({model: "demo", messages: ask, max_tokens: 16, ...more});

test("models", async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert.deepEqual(models, ["demo-Q5_K_M.gguf"]);
  assert.equal((await client.models.retrieve(models[0])).id, models[0]);
  await assert.rejects(client.models.retrieve("gpt-4o"), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
});

test("chat, whole and streamed", async () => {
  const whole = await chat();
  assert.equal(whole.object, "chat.completion");
  assert.equal(whole.choices[0].message.role, "assistant");
  assert.ok(whole.choices[0].message.content.length > 0);
  assert.equal(whole.usage.completion_tokens, 16);
  let text = "", usage;
  for await (const chunk of await chat({stream: true, stream_options: {include_usage: true}})) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 16);
});

test("the client's stream helper", async () => {
  const stream = client.chat.completions.stream({model: "demo", messages: ask, max_tokens: 16});
  let deltas = "";
  stream.on("content", (delta) => (deltas += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, deltas);
  assert.equal(final.choices[0].finish_reason, "length");
});

test("completions, echo, n and seed", async () => {
  const whole = await complete();
  assert.equal((await complete({echo: true})).choices[0].text, story + whole.choices[0].text);
  const options = {n: 3, temperature: 1.2, seed: 5, top_p: 0.9};
  const [a, b] = [await complete(options), await complete(options)];
  assert.equal(a.choices.length, 3);
  assert.deepEqual(a.choices.map((c) => c.text), b.choices.map((c) => c.text));
  assert.ok(new Set(a.choices.map((c) => c.text)).size > 1);
});

test("stop strings", async () => {
  const text = (await complete()).choices[0].text;
  const stop = text.slice(20, 26);
  const cut = await complete({stop: [stop]});
  assert.equal(cut.choices[0].text, text.slice(0, text.indexOf(stop)));
  assert.equal(cut.choices[0].finish_reason, "stop");
});

test("logprobs", async () => {
  const c = (await chat({logprobs: true, top_logprobs: 3})).choices[0];
  assert.equal(c.logprobs.content.length, 16);
  assert.equal(c.logprobs.content.map((t) => t.token).join(""), c.message.content);
  for (const t of c.logprobs.content) {
    assert.equal(t.top_logprobs.length, 3);
    assert.ok(t.logprob <= 0 && t.logprob >= t.top_logprobs[1].logprob);
  }
  const old = (await complete({logprobs: 2, max_tokens: 4})).choices[0].logprobs;
  assert.equal(old.tokens.length, 4);
  assert.equal(Object.keys(old.top_logprobs[0]).length, 2);
});

test("errors are those that the client knows", async () => {
  await assert.rejects(chat({messages: []}), (e) => e instanceof OpenAI.BadRequestError && e.param === "messages");
  await assert.rejects(complete({prompt: " cat".repeat(3000)}), (e) => {
    assert.ok(e instanceof OpenAI.BadRequestError);
    assert.equal(e.code, "context_length_exceeded");
    return /maximum context length is \d+ tokens/.test(e.message);
  });
  await assert.rejects(client.embeddings.create({model: "demo", input: "x"}), OpenAI.BadRequestError);
  await assert.rejects(complete({max_tokens: -5}), OpenAI.BadRequestError);
  await assert.rejects(client.get("/nowhere"), OpenAI.NotFoundError);
});

test("keys", async () => {
  const guarded = await Server.start(["--api-key", key]);
  try {
    const bad = new OpenAI({apiKey: "other", baseURL: `${guarded.url}/v1`, maxRetries: 0});
    await assert.rejects(bad.models.list(), OpenAI.AuthenticationError);
    const good = new OpenAI({apiKey: key, baseURL: `${guarded.url}/v1`, maxRetries: 0});
    assert.equal((await good.models.list()).data.length, 1);
    assert.equal((await fetch(`${guarded.url}/health`)).status, 200);
  } finally {
    assert.equal(await guarded.stop(), 0);
  }
});

test("abort frees the slot", async () => {
  const before = await metric(server, "vllm:generation_tokens_total");
  const stream = await complete({stream: true, max_tokens: 1900, logit_bias: {}, ignore_eos: true});
  let seen = 0;
  for await (const chunk of stream) {
    if (++seen === 5) stream.controller.abort();
  }
  await settled(server);
  assert.ok((await metric(server, "vllm:generation_tokens_total")) - before < 1900);
});

test("json_schema", async () => {
  const schema = {type: "object", properties: {name: {type: "string", maxLength: 10}, legs: {type: "integer", minimum: 0}},
                  required: ["name", "legs"], additionalProperties: false};
  const answer = await chat({max_tokens: 80, response_format: {type: "json_schema", json_schema: {name: "animal", strict: true, schema}}});
  const value = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(value), ["name", "legs"]);
  assert.ok(Number.isInteger(value.legs));
});

test("tools", async () => {
  const source = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n" +
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n{# <tool_call> #}";
  const s = await Server.start(["--temp", "0", "--chat-template", source]);
  try {
    const c = new OpenAI({apiKey: key, baseURL: `${s.url}/v1`, maxRetries: 0});
    const tools = [{type: "function", function: {name: "weather", parameters: {
      type: "object", properties: {city: {enum: ["Paris", "Rome"]}}, required: ["city"]}}}];
    const answer = await c.chat.completions.create({model: "demo", messages: ask, tools, tool_choice: "required", max_tokens: 60});
    const call = answer.choices[0].message.tool_calls[0];
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    assert.equal(call.function.name, "weather");
    assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
    const again = await c.chat.completions.create({model: "demo", tools, max_tokens: 4, messages: [
      ...ask, answer.choices[0].message, {role: "tool", tool_call_id: call.id, content: "rain"}]});
    assert.equal(again.object, "chat.completion");
  } finally {
    assert.equal(await s.stop(), 0);
  }
});

const raw = (path, body, options = {}) => fetch(`${server.url}${path}`, {method: "POST", headers: {"Content-Type": "application/json"},
  body: JSON.stringify(body), ...options});

test("raw events", async () => {
  const response = await raw("/v1/completions", {prompt: story, max_tokens: 24, stream: true, temperature: 0, stream_options: {include_usage: true}});
  assert.equal(response.status, 200);
  const events = [];
  for await (const event of rawEvents(response)) events.push(event);
  assert.equal(events.at(-1), "[DONE]");
  const chunks = events.slice(0, -1).map(JSON.parse);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, 24);
  assert.equal(chunks.at(-2).choices[0].finish_reason, "length");
  assert.equal(chunks.slice(0, -1).map((c) => c.choices[0].text).join(""), (await complete()).choices[0].text);
});

test("raw events of a chat", async () => {
  const response = await raw("/v1/chat/completions", {messages: ask, max_tokens: 16, stream: true});
  assert.match(response.headers.get("content-type"), /^text\/event-stream/);
  const events = [];
  for await (const event of rawEvents(response)) events.push(event);
  assert.equal(events.pop(), "[DONE]");
  const chunks = events.map(JSON.parse);
  assert.deepEqual(new Set(chunks.map((c) => `${c.id} ${c.object}`)), new Set([`${chunks[0].id} chat.completion.chunk`]));
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.deepEqual(chunks.map((c) => c.choices[0].finish_reason).filter((r) => r !== null), ["length"]);
  assert.equal(chunks.map((c) => c.choices[0].delta.content ?? "").join(""), (await chat()).choices[0].message.content);
});

test("an error before a stream is no stream", async () => {
  for (const [path, body, status] of [["/v1/chat/completions", {messages: ask, max_tokens: "many", stream: true}, 400],
    ["/v1/completions", {prompt: " cat".repeat(3000), stream: true}, 400], ["/v1/nowhere", {stream: true}, 404]]) {
    const response = await raw(path, body);
    assert.equal(response.status, status);
    assert.match(response.headers.get("content-type"), /^application\/json/);
    const {error} = await response.json();
    assert.equal(typeof error.message, "string");
    assert.deepEqual(Object.keys(error).slice(0, 4), ["message", "type", "param", "code"]);
  }
});

test("a raw stream that its reader leaves", async () => {
  const aborts = () => metric(server, "vllm:request_success_total", 'finished_reason="abort"');
  const before = await aborts(), controller = new AbortController();
  const response = await raw("/v1/chat/completions", {messages: ask, max_tokens: 1900, ignore_eos: true, stream: true}, {signal: controller.signal});
  let seen = 0;
  await assert.rejects(async () => {
    for await (const event of rawEvents(response)) if (JSON.parse(event) && ++seen === 5) controller.abort();
  }, {name: "AbortError"});
  await settled(server);
  assert.equal(await aborts() - before, 1);
});

test("SIGTERM in the middle of a stream", async () => {
  const ending = await Server.start(["--temp", "0", "--drain-timeout", "150"]);
  const response = await fetch(`${ending.url}/v1/completions`, {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({prompt: story, max_tokens: 300, ignore_eos: true, stream: true, stream_options: {include_usage: true}})});
  const events = [];
  let code;
  for await (const event of rawEvents(response)) {
    events.push(event);
    if (events.length === 3) code = ending.stop();
  }
  assert.equal(events.pop(), "[DONE]");
  assert.equal(JSON.parse(events.at(-1)).usage.completion_tokens, 300);
  assert.equal(await code, 0);
  await assert.rejects(fetch(ending.url));
});

test("SIGTERM while experts are warmed up", async () => {
  const slow = ["--port", "0", "--warmup", "tokens", "--io-limit", "1MB"];  // would take half a minute
  const loading = spawn(binary, ["serve", "-m", demoModel, ...slow], {stdio: ["ignore", "ignore", "pipe"]});
  const ended = new Promise((resolve) => loading.on("close", (code, signal) => resolve(code ?? signal)));
  let log = "";
  await new Promise((resolve) => loading.stderr.on("data", (text) => /listening/.test(log += text) && resolve()));
  loading.kill("SIGTERM");
  assert.equal(await ended, 0);
  assert.match(log, /stopped while loading/);
  assert.doesNotMatch(log, /ready/);
});
