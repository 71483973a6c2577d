// Tables and verdict of stall.sh: replays, then what bench measured.
import fs from "node:fs";

const [rows, asked, auto, ...real] = process.argv.slice(2).map((file) => JSON.parse(fs.readFileSync(file)));
const trained = (row) => row.predictor.endsWith(".gguf");
const name = (row) => trained(row) ? "trained" : row.predictor;
const domain = (row) => row.trace.replace("heldout-", "");
console.log("| text | policy | predictor | S | hit % | late % | ready % | copied, x LRU | stall, % of compute | less than LRU on demand, % |");
console.log("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
const less = (row) => 100 * (1 - row.stall_seconds / row.lru_stall_seconds);
for (const r of rows)
  console.log(`| ${domain(r)} | ${r.policy} | ${name(r)} | ${r.predictor === "none" ? "-" : r.distance || "auto"} | ` +
    `${(100 * r.hit_rate).toFixed(1)} | ${(100 * r.late / r.accesses).toFixed(1)} | ${(100 * r.ready_recall).toFixed(1)} | ${((r.bytes_demand + r.bytes_ahead) / r.lru_bytes).toFixed(2)} | ` +
    `${(100 * r.stall_seconds / r.compute_seconds).toFixed(2)} | ${less(r).toFixed(1)} |`);
const judged = rows.filter((r) => trained(r) && r.distance === 0);
const overlap = Math.max(...judged.map((r) => r.lru_bytes / r.bandwidth / r.compute_seconds));
const least = Math.min(...judged.map(less));
console.log(`\nLRU's copies on demand take at most ${(100 * overlap).toFixed(0)} % of the compute.`);
console.log("\nCopies ahead as the engine's governor decides, beside none, in a replay of each link:\n");
console.log("| text | GB/s | compute waits without, % | token time with / without | less than LRU on demand, % | ahead in | prefetch |");
console.log("| --- | ---: | ---: | ---: | ---: | ---: | --- |");
for (const r of [...asked, ...auto].filter(trained)) {
  const none = auto.find((o) => o.predictor === "none" && o.trace === r.trace && o.bandwidth === r.bandwidth);
  const g = r.governor;
  console.log(`| ${domain(r)} | ${r.bandwidth / 1e9} | ${(100 * none.stall_seconds / none.total_seconds).toFixed(1)} | ` +
    `${(r.total_seconds / none.total_seconds).toFixed(4)} | ${less(r).toFixed(1)} | ` +
    `${g.steps_on} of ${g.steps_on + g.steps_off} steps | ${g.reason} |`);
}
// The same link as above: as a run of the engine does it.
const on = asked.filter(trained), leastOn = Math.min(...on.map(less));
const ran = auto.filter((r) => trained(r) && r.bandwidth === judged[0].bandwidth);
const waits = (r) => 100 * r.stall_seconds / r.total_seconds;
const helped = ran.filter((r) => less(r) >= 90), left = ran.filter((r) => less(r) < 90);
console.log("");
const stall = (report) => 1e3 * report.results[0].experts.stall_seconds_per_token;
for (const report of real) {
  const r = report.results[0];
  console.log(`on this machine, ${report.command}: ${r.tokens_per_second.median.toFixed(1)} tok/s, hits ` +
    `${(100 * r.experts.hit_rate).toFixed(1)} %, waited ${stall(report).toFixed(2)} of ${(1e3 / r.tokens_per_second.median).toFixed(2)} ms a token, ` +
    `${(100 * stall(report) / stall(real[0])).toFixed(0)} % of the first's`);
}
const ok = judged.length === 4 && on.length === 4 && ran.length === 4 && real.length === 4 && least >= 90 && leastOn >= 90 &&
  helped.length > 0 && left.every((r) => waits(r) <= 2) && overlap < 1;
console.log(`bar stall: ${ok ? "ok" : "SHORT"}: at 40 % residency with overlap possible, next-use with the trained predictor ` +
  `at an adaptive distance waits ${least.toFixed(1)} % less than LRU on demand, ${leastOn.toFixed(1)} % under the engine's governor ` +
  `(90 asked for), on the worst of four texts; left to itself the governor helps ${helped.map(domain).join(", ")} and is off where ` +
  `${Math.max(0, ...left.map(waits)).toFixed(2)} % of the time is waited (2 allowed, below which the governor tries nothing)`);
process.exitCode = ok ? 0 : 1;
