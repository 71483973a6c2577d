#!/usr/bin/env bash
# Bar: the adaptive distance falls at every step as the link gets faster (8, 16, 32, 64, 300 GB/s), is within 1 of
# ceil(Ne * Es / (Cs * Tl)), and comes back within 100 tokens after a step change of the link. Experts of 9.4 MB (those
# of Qwen3-30B-A3B in BF16), layers of an eighth of a millisecond, the oracle as predictor, 40 % residency.
set -euo pipefail
source "$(dirname "$0")/models.sh"
source bench/bars/traces.sh
TOKENS=${TOKENS:-3072} tokens=${TOKENS:-3072}
build_traces
common=(--trace "$bars/heldout-english.trace" --expert-memory 40% --layer-time 125 --expert-bytes 9437184 --max-distance 12
  --predictor oracle --distance auto -q -o json)
"$bin" replay "${common[@]}" --bandwidth 8,16,32,64,300 > "$bars/distance.json"
"$bin" replay "${common[@]}" --bandwidth 32 --bandwidth-changes 1000:8,2000:32 > "$bars/distance-step.json"
node bench/bars/distance.mjs "$bars/distance.json" "$bars/distance-step.json"
