#!/usr/bin/env bash
# Bar: golden outputs of every fixture checkpoint, at full budget and with the fewest slots; every block format exact.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/bootstrap.sh >/dev/null
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" --target bar_fixtures >/dev/null
build/release/bin/bar_fixtures
