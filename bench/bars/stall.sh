#!/usr/bin/env bash
# Bar: at 40 % residency, where the link has the time (what LRU copies on demand takes less than the compute), copying
# ahead by the bundled model's trained predictor at an adaptive distance waits at least 90 % less than LRU on demand: same
# engine, same link. Other predictors stand in the same table. Last, what the engine waits on this machine's processor and
# disk, without and with copies ahead.
set -euo pipefail
source "$(dirname "$0")/models.sh"
source bench/bars/traces.sh
TOKENS=${TOKENS:-3072} tokens=${TOKENS:-3072}
build_traces
traces=()
for domain in english docs code zh; do traces+=(--trace "$bars/heldout-$domain.trace"); done
"$bin" replay -q "${traces[@]}" --expert-memory 40% --layer-time 1000 --expert-bytes 65536 --bandwidth 0.3 \
  -m models/demo/demo-Q5_K_M.gguf --predictor none,oracle,gate-ahead,models/demo/demo-Q5_K_M.predictor.gguf,transitions \
  --distance 1,auto --max-distance 4 --min-probability 0.1 --policy next-use -o json > "$bars/stall.json"
# The engine's governor under the virtual clock, from a saturated link to one that is hardly used.
"$bin" replay -q --trace "$bars/heldout-english.trace" --trace "$bars/heldout-code.trace" --expert-memory 40% \
  --layer-time 1000 --expert-bytes 65536 --bandwidth 0.01,0.03,0.1,0.3,3 -m models/demo/demo-Q5_K_M.gguf \
  --predictor none,models/demo/demo-Q5_K_M.predictor.gguf --distance auto --max-distance 4 --min-probability 0.05 \
  --governor auto -o json > "$bars/stall-governor.json"
real=()
for ahead in 0 1; do
  "$bin" bench -q -m models/demo/demo-Q5_K_M.gguf --expert-memory 40% -p 0 -n 256 -r 2 -o json --text docs/guide.md \
    --no-peaks --read-ahead "$ahead" > "$bars/stall-$ahead.json" && real+=("$bars/stall-$ahead.json")
done
node bench/bars/stall.mjs "$bars/stall.json" "$bars/stall-governor.json" "${real[@]}"
