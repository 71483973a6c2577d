// Tables and the verdict of replay.sh: JSON of slots of one size, of the file's own sizes, of advice without copies.
import fs from "node:fs";

const [equal, own, advice] = process.argv.slice(2).map((file) => JSON.parse(fs.readFileSync(file)));
const policy = "next-use";
const least = {english: 30, docs: 40, code: 40, zh: 45};
const percent = (x) => (100 * x).toFixed(1);
const domain = (row) => row.trace.replace("heldout-", "");

// A row's column: its policy, and whose word it hears.
function column(row) {
  if (row.predictor === "none") return row.policy;
  return `${row.policy}, ${row.predictor.endsWith(".gguf") ? "trained" : row.predictor} ${row.distance}`;
}

function table(rows, lru = rows) {
  const policies = [...new Set(rows.map(column))];
  const keys = [...new Set(rows.map((r) => `${domain(r)} ${percent(r.resident_share)}`))];
  console.log(`| text | resident | clairvoyant | ${policies.join(" | ")} |`);
  console.log(`| --- | ---: | ---: | ${policies.map(() => "---:").join(" | ")} |`);
  for (const key of keys) {
    const group = rows.filter((r) => `${domain(r)} ${percent(r.resident_share)}` === key), first = group[0];
    // Bytes of what was asked for, slot by slot: with slots of one size these are misses.
    const base = lru.find((r) => r.policy === "lru" && r.trace === first.trace && r.resident_share === first.resident_share);
    const asked = first.lru_bytes / (first.accesses - base.hits) * first.accesses;
    const cell = (r) => `${percent((r.bytes_demand + r.bytes_ahead) / asked)} (${percent(r.gap_closed)})`;
    console.log(`| ${key.split(" ")[0]} | ${key.split(" ")[1]} % | ${percent(first.clairvoyant_bytes / asked)} | ` +
      `${policies.map((p) => cell(group.find((r) => column(r) === p))).join(" | ")} |`);
  }
}
console.log(`${equal[0].tokens} tokens a text, decoded one by one from an empty cache. In a cell: misses in % of the distinct experts`);
console.log("that layers asked for, and in parentheses the share of LRU's gap to the clairvoyant bound that is closed, in %.\n");
console.log("Slots of one size:\n");
table(equal);
console.log("\nSlots as large as the file's formats make them (bytes instead of misses):\n");
table(own);
console.log("\nSlots of one size, policies that hear what is predicted of the token's later layers; nothing is copied before it is asked for:\n");
table(advice, equal);

const found = equal.filter((r) => r.policy === policy), figures = [];
let ok = found.length === 16;
for (const [name, bound] of Object.entries(least)) {
  const rows = found.filter((r) => domain(r) === name);
  const large = Math.min(...rows.filter((r) => r.resident_share > 0.2).map((r) => 100 * r.gap_closed));
  const small = Math.min(...rows.filter((r) => r.resident_share < 0.2).map((r) => 100 * r.gap_closed));
  ok &&= large >= bound && small >= 0;
  figures.push(`${name} ${large.toFixed(1)} of ${bound} % (15 %: ${small.toFixed(1)})`);
}
console.log(`\nbar replay: ${ok ? "ok" : "SHORT"}: share of LRU's gap that ${policy} closes at 25 to 45 %, the least: ${figures.join(", ")}`);
process.exitCode = ok ? 0 : 1;
