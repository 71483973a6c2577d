#!/usr/bin/env bash
# Bar: decoding a widened model of 2 GB or more runs at 85 % of what reading its weights takes at the memory's measured
# speed in BF16 and Q8_0, and at 60 % in Q4_K.
set -euo pipefail
source "$(dirname "$0")/models.sh"
build_tools
status=ok
figures=()
for row in "BF16 8 8 85" "Q8_0 8 8 85" "Q4_K 8 16 60"; do
  read -r format a b least <<< "$row"
  file=$(model "$format" "$a" "$b")
  [ "$(stat -Lc %s "$file")" -ge 2000000000 ] || short_of cpu-bound "$file is smaller than 2 GB"
  # The prompt brings the experts into memory before decoding is measured.
  "$bin" bench -q -m "$file" --expert-memory 100% -p 512 -n 64 -r "${REPETITIONS:-5}" -o json --text docs/guide.md > "$bars/bound.json"
  row='r.results.find(x => x.n_gen > 0)'
  json "$bars/bound.json" "[$row].map(x => \`$format: \${x.tokens_per_second.mean.toFixed(2)} +- \${x.tokens_per_second.stddev.toFixed(2)} tok/s, \${(x.weight_bytes_per_token / 1e6).toFixed(0)} MB a token, \${x.memory_gb_s.toFixed(1)} of \${x.peaks.memory_read_gb_s.toFixed(1)} GB/s; \${(x.experts.bytes_read_per_token / 1e6).toFixed(1)} MB a token from disk\`)[0]"
  share=$(json "$bars/bound.json" "(100 * $row.memory_gb_s / $row.peaks.memory_read_gb_s).toFixed(1)")
  node -e "process.exit($share >= $least ? 0 : 1)" || status=SHORT
  figures+=(" $format $share % of $least %")
done
IFS=","
echo "bar cpu-bound: $status: share of the memory-read bound:${figures[*]}"
[ "$status" = ok ] || exit 1
