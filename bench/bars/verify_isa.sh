#!/usr/bin/env bash
# Bar: verify proves equal tokens at every budget with each instruction set that this processor has, on the bundled model
# and on one in Q8_0 and Q4_K.
set -euo pipefail
source "$(dirname "$0")/models.sh"
build_tools
models=(models/demo/demo-Q5_K_M.gguf "$(model Q8_0)" "$(model Q4_K)")
"$bin" bench -q -m "${models[0]}" -p 8 -n 0 -r 1 --no-peaks -o json > "$bars/isas.json"
isas=$(json "$bars/isas.json" 'r.machine.instruction_sets.join(" ")')
[ -n "$isas" ] || short_of verify-isa "bench names no instruction set"
status=ok
figures=()
for isa in $isas; do
  passed=0 checks=0
  for model in "${models[@]}"; do
    log=$("$bin" verify -q -m "$model" --isa "$isa" -n 16) || status=SHORT
    echo "$isa, $(basename "$model")"
    echo "$log"
    passed=$((passed + $(grep -c '^ok ' <<< "$log" || true)))
    checks=$((checks + $(grep -c '^\(ok  \|FAIL\) ' <<< "$log" || true)))
  done
  [ "$checks" -gt 0 ] && [ "$passed" = "$checks" ] || status=SHORT
  figures+=("$isa $passed of $checks")
done
IFS=","
echo "bar verify-isa: $status: checks passed: ${figures[*]}"
[ "$status" = ok ] || exit 1
