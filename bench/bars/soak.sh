#!/usr/bin/env bash
# Bar: 200 clients for three minutes, a tenth of them cut off, a twentieth malformed: nothing lost, duplicated or leaked.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
node bench/bars/server/soak.mjs
