#!/usr/bin/env bash
# Bar: on the demo model widened to more than 1 GB, peak memory seen from outside is at most
# expert budget + other weights + KV cache + 100 MiB, at 25, 50 and 100 % of the experts.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/bootstrap.sh >/dev/null
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" --target expertflow_cli peak_rss >/dev/null
bin=build/release/bin
wide=build/bars/demo-8x8.gguf
context=1024
allowance=$((100 * 1024 * 1024))

mkdir -p build/bars
[ -e "$wide" ] || "$bin/expertflow" widen models/demo/demo-Q5_K_M.gguf "$wide" 8 8
size=$(stat -c %s "$wide")
[ "$size" -ge 1000000000 ] || { echo "bar memory: SHORT: $wide has $size bytes, expected 1 GB or more"; exit 1; }

description=$("$bin/expertflow" inspect -m "$wide" -c $context --json)
number() { sed -n "s/^  \"$1\": \([0-9]*\),*\$/\1/p" <<< "$description"; }
experts=$(number expert_bytes) weights=$(number other_weight_bytes) kv=$(number kv_bytes_at_context)
[ -n "$experts" ] && [ -n "$weights" ] && [ -n "$kv" ] || { echo "bar memory: SHORT: inspect gave no sizes"; exit 1; }

prompt=$(head -c 2000 models/demo/README.md)
mib() { echo $(($1 / 1024 / 1024)); }
status=ok
figures=()
text=
for share in 25 50 100; do
  output=$("$bin/peak_rss" build/bars/peak "$bin/expertflow" run -m "$wide" --expert-memory $share% -c $context -n 32 \
    --temp 0 -p "$prompt" 2> build/bars/log) || { cat build/bars/log; echo "bar memory: SHORT: the run at $share % failed"; exit 1; }
  peak=$(cat build/bars/peak)
  bound=$((experts * share / 100 + weights + kv + allowance))
  [ "$peak" -le "$bound" ] || status=SHORT
  [ -z "$text" ] || [ "$output" = "$text" ] || { echo "bar memory: SHORT: other text at $share %"; exit 1; }
  text=$output
  echo "$share %: peak $(mib $peak) MiB, allowed $(mib $bound) MiB = $(mib $((experts * share / 100))) experts + $(mib $weights) weights + $(mib $kv) KV + 100"
  figures+=("$share %: $(mib $peak) of $(mib $bound) MiB")
done
[ -n "$text" ] || { echo "bar memory: SHORT: no text was written"; exit 1; }
IFS=";"
echo "bar memory: $status: model of $(mib "$size") MiB; ${figures[*]}"
[ "$status" = ok ]
