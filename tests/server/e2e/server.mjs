// Starts `expertflow serve` on a free port for tests and ends it as an operator would.
import {spawn} from "node:child_process";
import path from "node:path";
import {fileURLToPath} from "node:url";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../..");
export const binary = process.env.EXPERTFLOW ?? path.join(root, "build/release/bin/expertflow");
export const demoModel = path.join(root, "models/demo/demo-Q5_K_M.gguf");

const running = new Set();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));  // whatever ended us, none stays behind

export class Server {
  static async start(args = [], model = demoModel) {
    const s = new Server();
    const env = {EXPERTFLOW_EXPERT_PROFILE: "off", ...process.env};  // no run finds what another has left
    s.process = spawn(binary, ["serve", "-m", model, "--port", "0", ...args], {stdio: ["ignore", "ignore", "pipe"], env});
    running.add(s.process);
    s.process.on("close", () => running.delete(s.process));
    s.log = "";
    s.ended = new Promise((resolve) => s.process.on("close", (code, signal) => resolve(code ?? signal)));
    await new Promise((resolve, reject) => {
      s.process.stderr.on("data", (text) => {
        s.log += text;
        const at = /listening on http:\/\/[^:]+:(\d+)/.exec(s.log);
        if (at) s.port = Number(at[1]);
        if (/ready: /.test(s.log)) resolve();
      });
      s.ended.then((code) => reject(new Error(`the server ended with ${code}: ${s.log}`)));
    });
    s.url = `http://127.0.0.1:${s.port}`;
    return s;
  }
  get pid() { return this.process.pid; }
  async stop() {
    this.process.kill("SIGTERM");
    return this.ended;
  }
}

// The events of a stream as raw text, without any client library.
export async function* rawEvents(response) {
  const decoder = new TextDecoder("utf-8", {fatal: true});
  let held = "";
  for await (const bytes of response.body) {
    held += decoder.decode(bytes, {stream: true});
    for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
      const event = held.slice(0, at);
      if (event.startsWith(":")) continue;
      if (!event.startsWith("data: ")) throw new Error(`no event: ${event}`);
      yield event.slice(6);
    }
  }
  if (held !== "") throw new Error(`the last event does not end: ${held}`);
}

// When nothing is computed and nothing waits: the number of slots. A slot that does not come back is an error, not a wait.
export async function settled(server, seconds = 60) {
  const deadline = performance.now() + 1e3 * seconds;
  for (;;) {
    const slots = await (await fetch(`${server.url}/slots`)).json();
    const waiting = await metric(server, "vllm:num_requests_waiting");
    if (slots.every((s) => !s.is_processing) && waiting === 0) return slots.length;
    if (performance.now() > deadline) throw new Error(`after ${seconds} s ${waiting} requests wait, slots: ${JSON.stringify(slots)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// labels: only of samples that carry this text.
export async function metric(server, name, labels = "") {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  let sum = 0, found = false;
  for (const line of text.split("\n"))
    if (line.startsWith(`${name}{`) && line.includes(labels)) sum += Number(line.slice(line.lastIndexOf(" ") + 1)), found = true;
  if (!found) throw new Error(`no metric ${name}`);
  return sum;
}
