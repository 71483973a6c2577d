#!/usr/bin/env bash
# The tracked tree, bundled model and fixtures included, must stay under 56 MiB: it is copied to test machines as a whole.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=$((56 * 1024 * 1024))
size=$(git ls-files -z | xargs -0 stat -c %s | awk '{ total += $1 } END { print total }')
echo "tree size: $size bytes of $limit"
[ "$size" -lt "$limit" ] || { echo "tree size: over the limit; the largest files:" >&2
  git ls-files -z | xargs -0 stat -c '%s %n' | sort -rn | sed -n 1,10p >&2; exit 1; }
