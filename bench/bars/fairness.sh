#!/usr/bin/env bash
# Bar: ten short prompts behind one of 1,500 tokens get their first token within 3 x the time they need without it.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
node bench/bars/server/fairness.mjs
