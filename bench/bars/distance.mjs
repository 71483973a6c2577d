// Table and verdict of distance.sh: replays at several bandwidths, and one whose link changes at tokens 1000 and 2000.
import fs from "node:fs";

const [rows, steps] = process.argv.slice(2).map((file) => JSON.parse(fs.readFileSync(file)));
const expertBytes = 9437184, layerSeconds = 125e-6, most = 12, layers = 12;
// Independent of the controller: with an oracle, the experts that a layer lacks are those that were copied for it.
const expected = (row) => (row.bytes_demand + row.bytes_ahead) / expertBytes / (row.tokens * layers);
const formula = (row) => Math.min(most, Math.max(1, Math.ceil(expected(row) * expertBytes / (row.bandwidth * layerSeconds) - 1e-6)));
const last = (row) => row.distances.at(-1)[1];
const at = (row, token) => row.distances.filter(([t]) => t <= token).at(-1)[1];
function mean(row, from, to) {
  let sum = 0;
  for (let t = from; t < to; ++t) sum += at(row, t);
  return sum / (to - from);
}

let ok = true;
console.log("| GB/s | Ne: copied a layer | Ne: the controller's | formula | mean S | S at the end | steps within 1 of the formula |");
console.log("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
const means = rows.map((row) => mean(row, 200, row.tokens));
rows.forEach((row, i) => {
  const value = formula(row);
  // The formula of the whole run against S over the whole run, with a margin, as a mean of ceilings is not the ceiling of
  // a mean; step by step the controller's own, without one.
  ok &&= Math.abs(means[i] - value) <= 1.25 && row.steps_within_1_of_formula === row.steps;
  ok &&= i === 0 || means[i] < means[i - 1] || (means[i] === 1 && means[i - 1] === 1);
  console.log(`| ${row.bandwidth / 1e9} | ${expected(row).toFixed(2)} | ${row.expected_experts.toFixed(2)} | ${value} | ` +
    `${means[i].toFixed(2)} | ${last(row)} | ${row.steps_within_1_of_formula} of ${row.steps} |`);
});
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
  `by the formula ${rows.map(formula).join(", ")}; back within 100 tokens after 32 -> 8 -> 32 GB/s`);
process.exitCode = ok ? 0 : 1;
