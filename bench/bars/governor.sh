#!/usr/bin/env bash
# Bar: with prefetch as its governor decides, a token takes at most 2 % longer than without on a saturated disk, a capped
# link, a fast disk and with every expert resident; and at least 15 % less where copies and compute take equally long.
set -euo pipefail
source "$(dirname "$0")/models.sh"
build_tools
cmake --build --preset release -j "$(nproc)" --target bar_governor > /dev/null
file=$bars/demo-4x4.gguf
[ -e "$file" ] || "$bin" widen -q models/demo/demo-Q5_K_M.gguf "$file" 4 4 > /dev/null
build/release/bin/bar_governor "$file" docs/guide.md || exit 1
