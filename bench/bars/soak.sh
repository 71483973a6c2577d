#!/usr/bin/env bash
# Bar: 200 clients for three minutes, a tenth or more of them cut off, a twentieth malformed: nothing lost, duplicated or
# leaked. Server and clients share two cores where they can be told to.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench/bars/serve.sh
pin=()
if taskset -c 0,1 true 2>/dev/null; then pin=(taskset -c 0,1); fi
"${pin[@]}" node bench/bars/server/soak.mjs
