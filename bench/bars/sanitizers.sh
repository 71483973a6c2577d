#!/usr/bin/env bash
# Bar: no finding of the address, undefined behaviour or thread sanitizer in the whole suite.
set -uo pipefail
cd "$(dirname "$0")/../.."
status=0
summary=()
for suite in debug tsan; do
  log=$(mktemp)
  make --no-print-directory "$suite" 2>&1 | tee "$log"
  [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
  tests=$(grep -Eo '[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' "$log" | tail -1)
  findings=$(grep -Ec 'ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:' "$log")
  [ "$findings" -eq 0 ] || status=1
  summary+=("$suite: ${tests:-no tests ran}, $findings findings")
  rm -f "$log"
done
IFS=';'
echo "bar sanitizers: ${summary[*]}"
exit $status
