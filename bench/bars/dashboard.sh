#!/usr/bin/env bash
# Bar: the dashboard in a headless browser: chat, map, keyboard, phone; no request leaves the machine; under 120 KB.
# Needs Node.js with npm, and Chromium (CHROMIUM names it).
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
npm ci --prefix tests/server/dashboard --no-audit --no-fund --silent
node --test --test-reporter=tap tests/server/dashboard/dashboard.test.mjs >"$work/dashboard.tap" || { grep -v '^#' "$work/dashboard.tap" >&2; exit 1; }
size=$(stat -c %s apps/server/web/dist/index.html)
echo "dashboard: $(grep '^# pass' "$work/dashboard.tap" | cut -d' ' -f3) tests passed, one file of $size bytes (at most 120,000), no request to anywhere else"
[ "$size" -le 120000 ]
