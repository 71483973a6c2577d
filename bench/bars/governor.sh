#!/usr/bin/env bash
# Bar: with prefetch as its governor decides, a token takes at most 2 % longer than without on a saturated disk, a capped
# link, a fast disk and with every expert resident; and at least 15 % less where copies and compute take equally long.
set -euo pipefail
source "$(dirname "$0")/models.sh"
build_tools
cmake --build --preset release -j "$(nproc)" --target bar_governor > /dev/null
fast=$bars/demo-4x4.gguf slow=$bars/demo-2x16.gguf
[ -e "$fast" ] || "$bin" widen -q models/demo/demo-Q5_K_M.gguf "$fast" 4 4 > /dev/null
[ -e "$slow" ] || "$bin" widen -q models/demo/demo-Q5_K_M.gguf "$slow" 2 16 > /dev/null
# A trained predictor, as ships with the model: of this width it has to be trained.
predictor=$bars/demo-2x16.predictor.gguf text=build/release/predict-text/train
[ -e "$predictor" ] || "$bin" train-predictor -q -m "$slow" --text "$text"/{english,zh,code,docs}.txt -o "$predictor" \
  --expert-memory 100% --max-tokens 12288 --eval-tokens 0 --prediction-horizon 3
build/release/bin/bar_governor "$fast" "$slow" "$predictor" docs/guide.md || exit 1
