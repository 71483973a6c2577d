#!/usr/bin/env bash
# Bar: a second identical long prompt computes at most 10 % of the first's tokens.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
node bench/bars/server/prefix.mjs
