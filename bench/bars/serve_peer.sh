#!/usr/bin/env bash
# Bar: 8 clients of the server get at least as many tokens a second as llama.cpp gives 8 sequences decoded together.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
bench/peers/install
node bench/bars/server/serve_peer.mjs
