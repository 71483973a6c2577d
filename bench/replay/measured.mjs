// Time of a token under every cache policy without copies ahead, and under every predictor with them, on this machine: what
// replay promises, measured. In turns, so that what else the machine does meets all of them.
//   node bench/replay/measured.mjs MODEL [--budget 40%] [--link 1GB] [--tokens 128] [--rounds 3] [--text docs/guide.md] [--predictor FILE]...
import { execFileSync } from "node:child_process";
import { parseArgs } from "node:util";

const usage = "usage: measured.mjs MODEL [--budget SIZE] [--link BYTES] [--tokens N] [--rounds N] [--text FILE] [--predictor FILE]...";
const text = (value) => ({ type: "string", default: value });
let values, positionals;
try {
  ({ values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      budget: text("40%"), link: text("1GB"), tokens: text("128"), rounds: text("3"), text: text("docs/guide.md"),
      predictor: { type: "string", multiple: true, default: [] },
    },
  }));
  if (positionals.length !== 1) throw new Error("expected one model");
} catch (error) {
  console.error(`measured: ${error.message}\n${usage}`);
  process.exit(2);
}
const bin = "build/release/bin/expertflow";
const run = (...args) => execFileSync(bin, args, { encoding: "utf8", maxBuffer: 1 << 28 });
const names = (flag) => run("run", "--help").match(new RegExp(`${flag}.*\\n.*first: (.*)`))[1].trim().split(", ");

const arms = names("--eviction-policy").map((policy) => ({ name: policy, flags: ["--eviction-policy", policy, "--read-ahead", "0"] }));
for (const predictor of ["gate-ahead", ...values.predictor])
  for (const ahead of ["on", "auto"])
    arms.push({ name: `next-use, ${predictor.split("/").at(-1)} ${ahead}`, flags: ["--predictor", predictor, "--async-prefetch", ahead] });
const common = ["bench", "-q", "-m", positionals[0], "--expert-memory", values.budget, "--io-limit", values.link, "--text", values.text,
  "-p", "0", "-n", values.tokens, "-r", "1", "--no-peaks", "-o", "json"];
for (let round = 0; round < Number(values.rounds); ++round)
  for (const arm of arms) (arm.runs ??= []).push(JSON.parse(run(...common, ...arm.flags)).results[0]);

const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
const of = (arm, value) => median(arm.runs.map(value));
const token = (arm) => of(arm, (r) => 1e3 / r.tokens_per_second.median);
console.log(`${bin} ${common.join(" ")}, the median of ${values.rounds}\n`);
console.log("| policy, copies ahead | ms a token | of lru's | waiting, ms | hits | MB read a token |\n| --- | ---: | ---: | ---: | ---: | ---: |");
const lru = token(arms.find((arm) => arm.name === "lru"));
for (const arm of arms)
  console.log(`| ${arm.name} | ${token(arm).toFixed(2)} | ${(token(arm) / lru).toFixed(2)} | ${of(arm, (r) => 1e3 * r.experts.stall_seconds_per_token).toFixed(2)} | ` +
    `${(100 * of(arm, (r) => r.experts.hit_rate)).toFixed(1)} % | ${of(arm, (r) => r.experts.bytes_read_per_token / 1e6).toFixed(2)} |`);
