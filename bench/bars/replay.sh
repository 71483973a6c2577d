#!/usr/bin/env bash
# Bar: in replay at 15, 25, 40 and 45 % residency, slots of one size, the default policy closes at least 30 % of LRU's gap
# to the clairvoyant bound on English, 40 % on docs and code and 45 % on Chinese at 25 to 45 %, and never loses to LRU at
# 15 %. Every other policy is in the same table, Belady's among them; a second table has the slots of the file's own sizes,
# a third what policies make of the trained predictor's and of an oracle's word alone. TOKENS shortens.
set -euo pipefail
source "$(dirname "$0")/models.sh"
source bench/bars/traces.sh
build_traces
traces=()
for domain in english docs code zh; do traces+=(--trace "$bars/heldout-$domain.trace"); done
shares=15%,25%,40%,45%
"$bin" replay -q "${traces[@]}" --policy all --expert-memory $shares --layer-time 1000 --expert-bytes 65536 -o json \
  --svg "$bars/replay.svg" > "$bars/replay.json"
"$bin" replay -q "${traces[@]}" --policy lru,lfru,next-use --expert-memory $shares --layer-time 1000 -o json \
  > "$bars/replay-own.json"
"$bin" replay -q "${traces[@]}" --policy next-use,lru-high-low --expert-memory $shares --layer-time 1000 --expert-bytes 65536 \
  -m models/demo/demo-Q5_K_M.gguf --predictor none,models/demo/demo-Q5_K_M.predictor.gguf,oracle --distance 11 --advise-only \
  -o json > "$bars/replay-advice.json"
node bench/bars/replay.mjs "$bars/replay.json" "$bars/replay-own.json" "$bars/replay-advice.json"
