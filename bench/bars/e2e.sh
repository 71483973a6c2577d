#!/usr/bin/env bash
# Bar: OpenAI's own client and a raw SSE client pass the end-to-end suite against the server on the bundled model.
# Needs Node.js 20 with npm.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
node --test --test-timeout=180000 --test-reporter=tap tests/server/e2e/ >"$work/e2e.tap" || { grep -v '^#' "$work/e2e.tap" >&2; exit 1; }
passed=$(grep '^# pass' "$work/e2e.tap" | cut -d' ' -f3)
failed=$(grep '^# fail' "$work/e2e.tap" | cut -d' ' -f3)
echo "e2e: $passed tests passed, $failed failed (openai $(node -p "require('./tests/server/e2e/node_modules/openai/package.json').version"))"
[ "$failed" -eq 0 ] && [ "$passed" -ge 10 ]
