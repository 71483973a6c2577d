#!/usr/bin/env bash
# Bar: a predictor trained anew on the training text, every distance that the depth allows, judged on held-out text beside
# gate-ahead; then the one that ships. TOKENS: of each domain (2048).
set -euo pipefail
cd "$(dirname "$0")/../.."
trap 'echo "bar recall: SHORT: line $LINENO failed"' ERR
scripts/bootstrap.sh >/dev/null
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" --target bar_recall expertflow_cli >/dev/null
train=${EF_TRAIN_TEXT:-build/release/predict-text/train} model=models/demo/demo-Q5_K_M.gguf fresh=build/bars/recall.predictor.gguf
mkdir -p build/bars
english=$train/english.txt
[ -e "$english" ] || english=$train/stories.txt
echo "the file that ships:"
build/release/bin/bar_recall models/demo/demo-Q5_K_M.predictor.gguf "${TOKENS:-2048}"
echo "trained anew:"
build/release/bin/expertflow train-predictor -q -m "$model" --text "$english" "$train"/{zh,code,docs}.txt -o "$fresh" --force \
  --prediction-horizon 11 --format Q8_0 --kinds hybrid,pre-attention,low-rank --max-tokens 81920 --eval-tokens 0
build/release/bin/bar_recall "$fresh" "${TOKENS:-2048}"
