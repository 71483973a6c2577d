#!/usr/bin/env bash
# Bar: at 40 % residency, where the link has the time (what LRU copies on demand takes less than the compute), copying
# ahead by the bundled model's trained predictor at an adaptive distance waits at least 90 % less than LRU on demand: same
# engine, same link. Judged are the replay's own rule and the engine's governor and regimes, with copies ahead asked for
# (--async-prefetch on) and as they are by default (auto), which may leave them off only where at most 2 % of the time is
# waited. Other predictors stand in the same table. Last, what the engine waits on this machine's processor and disk: LRU on demand, the default policy on
# demand, one layer ahead, and as it comes.
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
governed() {
  "$bin" replay -q "${traces[@]}" --expert-memory 40% --layer-time 1000 --expert-bytes 65536 -m models/demo/demo-Q5_K_M.gguf \
    --predictor none,models/demo/demo-Q5_K_M.predictor.gguf --distance auto --max-distance 4 --min-probability 0 \
    --governor "$1" --bandwidth "$2" -o json
}
governed on 0.3 > "$bars/stall-on.json"
governed auto 0.01,0.03,0.1,0.3,3 > "$bars/stall-auto.json"
real=()
for arm in lru:0 next-use:0 next-use:1 next-use:auto; do
  real+=("$bars/stall-${arm/:/-}.json")
  "$bin" bench -q -m models/demo/demo-Q5_K_M.gguf --expert-memory 40% -p 0 -n 256 -r 2 -o json --text docs/guide.md \
    --no-peaks --eviction-policy "${arm%:*}" --read-ahead "${arm#*:}" > "${real[-1]}"
done
node bench/bars/stall.mjs "$bars/stall.json" "$bars/stall-on.json" "$bars/stall-auto.json" "${real[@]}"
