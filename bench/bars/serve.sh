# Sourced by the server's bars: builds the command line tool and installs the pinned client. EXPERTFLOW names another binary.
command -v npm >/dev/null || { echo "this bar needs Node.js 20 with npm" >&2; exit 1; }
if [ -z "${EXPERTFLOW:-}" ]; then
  scripts/bootstrap.sh >/dev/null
  cmake --preset release >/dev/null
  cmake --build --preset release -j "$(nproc)" --target expertflow_cli >/dev/null
  export EXPERTFLOW=$PWD/build/release/bin/expertflow
fi
npm ci --prefix tests/server/e2e --no-audit --no-fund --silent
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
