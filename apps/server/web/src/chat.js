import {call, events, KeyWanted} from "./api.js";

const $ = (id) => document.getElementById(id);
let messages = [];
let running = null;  // AbortController of the answer that comes

function bubble(role, text = "") {
  const element = document.createElement("div");
  element.className = `message ${role}`;
  element.textContent = text;
  $("messages").append(element);
  element.scrollIntoView({block: "end"});
  return element;
}

function busy(controller) {
  running = controller;
  $("send").disabled = controller !== null;
  $("stop").disabled = controller === null;
}

async function ask(text, onKey) {
  messages.push({role: "user", content: text});
  bubble("user", text);
  const element = bubble("assistant");
  const thought = document.createElement("span"), answer = document.createElement("span"), speed = document.createElement("span");
  thought.className = "thought";
  speed.className = "speed";
  element.append(thought, answer, speed);
  busy(new AbortController());
  let content = "", tokens = 0, first = 0;
  const begin = performance.now();
  try {
    const response = await call("v1/chat/completions", {method: "POST", signal: running.signal, body: JSON.stringify({
      messages, stream: true, stream_options: {include_usage: true}, temperature: Number($("temperature").value),
      max_tokens: Number($("tokens").value)})});
    for await (const chunk of events(response)) {
      const log = $("messages"), follow = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.reasoning_content) thought.textContent += delta.reasoning_content;
      if (delta.content) content += delta.content, answer.textContent = content;
      if (delta.content || delta.reasoning_content) first ||= performance.now();
      tokens = chunk.usage?.completion_tokens ?? tokens;
      if (follow) log.scrollTop = log.scrollHeight;
    }
    messages.push({role: "assistant", content});
  } catch (error) {
    if (error instanceof KeyWanted) onKey();
    if (error.name === "AbortError") {
      messages.push({role: "assistant", content});
      speed.textContent = "stopped";
    } else {
      messages.pop();
      element.classList.add("error");
      answer.textContent = error.message;
    }
  } finally {
    busy(null);
  }
  if (tokens > 1 && first) {
    const seconds = (performance.now() - first) / 1e3;
    speed.textContent = `${tokens} tokens, first after ${((first - begin) / 1e3).toFixed(2)} s, ${((tokens - 1) / seconds).toFixed(1)} tok/s`;
  }
  $("messages").scrollTop = $("messages").scrollHeight;
}

export function startChat(onKey) {
  const send = () => {
    const text = $("text").value.trim();
    if (!text || running) return;
    $("text").value = "";
    ask(text, onKey);
  };
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
  $("stop").addEventListener("click", () => running?.abort());
  $("clear").addEventListener("click", () => {
    running?.abort();
    messages = [];
    $("messages").replaceChildren();
    $("text").focus();
  });
}
