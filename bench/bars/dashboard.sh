#!/usr/bin/env bash
# Bar: the dashboard in a headless browser: chat, map, keyboard, phone; no request leaves the machine; built
# from its source; under 120 KB.
# Needs Node.js with npm, and Chromium (CHROMIUM names it), which is installed where it is not there.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
[ -n "${CHROMIUM:-}" ] || command -v chromium >/dev/null || scripts/bootstrap.sh --browser >/dev/null
npm ci --prefix tests/server/dashboard --no-audit --no-fund --silent
node --test --test-timeout=180000 --test-reporter=tap tests/server/dashboard/dashboard.test.mjs >"$work/dashboard.tap" || { grep -v '^#' "$work/dashboard.tap" >&2; exit 1; }
# What is checked in is what its source builds.
npm ci --prefix apps/server/web --no-audit --no-fund --silent
cp apps/server/web/dist/index.html "$work/index.html"
npm run build --prefix apps/server/web --silent >/dev/null
cmp apps/server/web/dist/index.html "$work/index.html" || { echo "dashboard: dist/index.html was not built from this source" >&2; exit 1; }
size=$(stat -c %s apps/server/web/dist/index.html)
echo "dashboard: $(grep '^# pass' "$work/dashboard.tap" | cut -d' ' -f3) tests passed, one file of $size bytes (at most 120,000), no request to anywhere else"
[ "$size" -le 120000 ]
