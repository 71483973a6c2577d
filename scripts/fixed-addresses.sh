#!/usr/bin/env bash
# Runs a command without address space randomisation where that is allowed: on kernels with many random bits the thread
# sanitizer of GCC 12 refuses to start otherwise.
set -euo pipefail
if setarch "$(uname -m)" -R true 2>/dev/null; then
  exec setarch "$(uname -m)" -R "$@"
fi
exec "$@"
