// Table and verdict of distance.sh: replays at several bandwidths, and one whose link changes at tokens 1000 and 2000.
import fs from "node:fs";

const [rows, steps] = process.argv.slice(2).map((file) => JSON.parse(fs.readFileSync(file)));
const expertBytes = 9437184, layerSeconds = 500e-6, most = 12;
// Independent of the controller's own arithmetic: only Ne is taken from it.
const formula = (expected, bandwidth) => Math.min(most, Math.max(1, Math.ceil(expected * expertBytes / (bandwidth * layerSeconds) - 1e-6)));
const last = (row) => row.distances.at(-1)[1];
const at = (row, token) => row.distances.filter(([t]) => t <= token).at(-1)[1];
function mean(row, from, to) {
  let sum = 0;
  for (let t = from; t < to; ++t) sum += at(row, t);
  return sum / (to - from);
}

let ok = true;
console.log("| GB/s | Ne | formula | S at the end | mean S |\n| ---: | ---: | ---: | ---: | ---: |");
const means = rows.map((row) => mean(row, 200, row.tokens));
rows.forEach((row, i) => {
  const value = formula(row.expected_experts, row.bandwidth);
  ok &&= Math.abs(last(row) - value) <= 1 && row.steps_within_1_of_formula === row.steps;
  ok &&= i === 0 || last(row) <= last(rows[i - 1]);
  console.log(`| ${row.bandwidth / 1e9} | ${row.expected_experts.toFixed(2)} | ${value} | ${last(row)} | ${means[i].toFixed(2)} |`);
});
ok &&= means.at(-1) < means[0];
const step = steps[0];
// Where S is after a change, against where it stays on such a link: the hundred tokens that begin a hundred after it.
const slow = means[0], fast = means[2];
for (const [name, from, usual] of [["32 GB/s", 900, fast], ["8 GB/s, 100 tokens after the change", 1100, slow],
  ["32 GB/s again, 100 tokens after", 2100, fast]]) {
  const found = mean(step, from, from + 100);
  ok &&= Math.abs(found - usual) <= 1;
  console.log(`${name}: mean S ${found.toFixed(2)}, without changes ${usual.toFixed(2)}`);
}
ok &&= step.steps_within_1_of_formula === step.steps;
console.log(`bar distance: ${ok ? "ok" : "SHORT"}: mean S ${means.map((m) => m.toFixed(2)).join(", ")} at 8, 16, 32, 64, 300 GB/s, ` +
  `within 1 of the formula at every step; back within 100 tokens after 32 -> 8 -> 32 GB/s`);
process.exitCode = ok ? 0 : 1;
