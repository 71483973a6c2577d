import {call, KeyWanted, setKey} from "./api.js";
import {startChat} from "./chat.js";
import {showMap} from "./map.js";

const $ = (id) => document.getElementById(id);
const period = 500;
let before = null;

function wantKey() {
  $("key-form").hidden = false;
  $("key").focus();
}

function status(text, bad = false) {
  $("status").textContent = text;
  $("status").className = bad ? "bad" : "";
}

const tiles = new Map();
function tile(name, value) {
  if (!tiles.has(name)) {
    const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    box.append(dt, dd);
    $("tiles").append(box);
    tiles.set(name, dd);
  }
  tiles.get(name).textContent = value;
}

const percent = (part, all) => (all > 0 ? `${(100 * part / all).toFixed(1)} %` : "–");
function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000 || unit === "GB") return `${n.toFixed(n < 10 && unit !== "B" ? 1 : 0)} ${unit}`;
    n /= 1000;
  }
}

function show(now) {
  const last = before ?? now, seconds = Math.max(1e-3, now.time - last.time);
  const since = (name) => now[name] - last[name];
  $("model").textContent = now.model;
  tile("generated", `${(since("decode_tokens") / seconds).toFixed(1)} tok/s`);
  tile("prompts", `${(since("prefill_tokens") / seconds).toFixed(0)} tok/s`);
  const asked = since("hits") + since("misses");
  tile("hit rate", asked ? percent(since("hits"), asked) : percent(now.hits, now.hits + now.misses));
  tile("stalled", percent(since("stall_seconds"), Math.max(since("step_seconds"), 1e-9)));
  tile("distance S", now.distance === null ? "–" : `${now.distance}${now.prefetching ? "" : ", no prefetch"}`);
  const routed = since("routed");
  tile("recall", routed ? percent(since("named"), routed) : percent(now.named, now.routed));
  tile("running", `${now.running} of ${now.slots}`);
  tile("queue", now.waiting);
  tile("KV cache", percent(now.kv_used, 1));
  tile("expert reads", `${bytes(since("bytes_read") / seconds)}/s`);
  tile("disk busy", percent(Math.min(since("read_seconds"), seconds), seconds));
  tile("disk speed", now.bytes_per_second > 0 ? `${bytes(now.bytes_per_second)}/s` : "–");
  tile("fast tier", now.expert_budget < now.expert_total ? `${bytes(now.expert_budget)} of ${bytes(now.expert_total)}` : "all resident");
  tile("kept prompts", percent(now.prefix_hits, now.prefix_queries));
  tile("within SLA", now.sla_share === null ? "–" : percent(now.sla_share, 1));
  tile("put off", percent(since("deferred"), Math.max(since("ready"), 1)));
  before = now;
}

async function look() {
  try {
    if (!document.hidden) {
      const state = await (await call("dashboard.json")).json();
      show(state);
      showMap(state);
      status("ready");
      $("key-form").hidden = true;
    }
  } catch (error) {
    if (error instanceof KeyWanted) wantKey();
    status(error.message, true);
  }
  setTimeout(look, period);
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value);
});
startChat(wantKey);
look();
