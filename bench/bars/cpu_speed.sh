#!/usr/bin/env bash
# Bar: prefill of 512 tokens and decoding at least as fast as llama.cpp in Q8_0 and Q4_K, on the bundled model and on it
# widened to 2 GB or more, in turns, equal threads; outputs equal to the reference instruction set's.
set -euo pipefail
source "$(dirname "$0")/models.sh"
build_tools
pairs=${PAIRS:-5} repetitions=${REPETITIONS:-3}
small=("$(model Q8_0)" "$(model Q4_K)")
large=("$(model Q8_0 8 8)" "$(model Q4_K 8 16)")
for file in "${large[@]}"; do
  [ "$(stat -Lc %s "$file")" -ge 2000000000 ] || short_of cpu-speed "$file is smaller than 2 GB"
done

# equals_reference FILE CHUNK CHUNKS PERCENT: the reference ops multiply in float32, the fast ones may round activations
# to 8 bits as llama.cpp does; perplexities agree within PERCENT.
right=ok
equals_reference() {
  local values=() isa
  for isa in reference auto; do
    values+=("$("$bin" perplexity -q -m "$1" -f build/release/fixtures/demo/stories-300k.txt --isa $isa --chunk "$2" --chunks "$3" | awk '{print $2}')")
  done
  echo "$(basename "$1"): perplexity ${values[0]} by the reference ops, ${values[1]} by the fastest"
  node -e "process.exit(Math.abs(${values[1]} / ${values[0]} - 1) <= $4 / 100 ? 0 : 1)" || right=SHORT
}
for file in "${small[@]}"; do equals_reference "$file" 256 16 0.5; done
for file in "${large[@]}"; do equals_reference "$file" 128 4 1; done

status=ok
bench/peers/run --pairs "$pairs" --repetitions "$repetitions" --json "$bars/speed.json" --at-least 1.0 "${small[@]}" "${large[@]}" || status=SHORT
figures=$(json "$bars/speed.json" 'r.map(m => m.model.split("/").at(-1).replace(/\.gguf$/, "") + " " + m.samples.map(s => { const v = [...s.ratios].sort((a, b) => a - b); return ((v[(v.length - 1) >> 1] + v[v.length >> 1]) / 2).toFixed(2) }).join(" and ")).join(", ")')
[ "$right" = ok ] || status="SHORT (outputs differ from the reference)"
echo "bar cpu-speed: $status: of llama.cpp's speed, prefill and decode: $figures"
[ "$status" = ok ] || exit 1
