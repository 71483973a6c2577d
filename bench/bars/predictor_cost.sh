#!/usr/bin/env bash
# Bar: on the bundled model widened by 16 (hidden size and experts' width; 8 GB in build/bars), a predictor of six layers ahead
# with heads before attention takes at most 3.5 % of a step and 1/1000 of the experts' numbers. FACTOR: another width.
set -euo pipefail
cd "$(dirname "$0")/../.."
trap 'echo "bar predictor-cost: SHORT: line $LINENO failed"' ERR
scripts/bootstrap.sh >/dev/null
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" --target bar_predictor_cost expertflow_cli >/dev/null
factor=${FACTOR:-16} wide=build/bars/demo-wide$factor.gguf
mkdir -p build/bars
if [ ! -e "$wide" ]; then
  rm -f build/bars/demo-wide.part.gguf
  build/release/bin/expertflow widen -q models/demo/demo-Q5_K_M.gguf build/bars/demo-wide.part.gguf "$factor" "$factor"
  mv build/bars/demo-wide.part.gguf "$wide"
fi
build/release/bin/bar_predictor_cost "$wide" "${TOKENS:-24}"
