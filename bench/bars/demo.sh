#!/usr/bin/env bash
# Bar: the bundled model's tokens, logits and perplexity; with EF_MODELS=DIR, the other files of DIR/demo too.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/bootstrap.sh >/dev/null
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" --target bar_demo >/dev/null
build/release/bin/bar_demo
