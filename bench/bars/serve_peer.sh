#!/usr/bin/env bash
# Bar: 8 clients of the server get at least as many tokens a second as llama.cpp gives 8 sequences decoded together.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
if [ ! -e bench/peers/llamacpp/node_modules/node-llama-cpp/package.json ]; then
  npm install --prefix bench/peers/llamacpp --no-save --omit=optional --ignore-scripts --no-audit --no-fund --loglevel=error >&2
fi
node bench/bars/server/serve_peer.mjs
