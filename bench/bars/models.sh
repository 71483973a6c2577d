# Sourced by bars: builds the tools, and writes the models that they measure into build/bars, once (22 GB for all bars).
# The bundled model is widened and quantised: real routing at large models' sizes. A Q4_K block holds 256 numbers and the
# bundled experts are 128 wide, so those are doubled before they are quantised.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=build/release/bin/expertflow
bars=build/bars
mkdir -p "$bars"
# Whatever fails, a bar's last line says so.
set -E
shopt -s inherit_errexit
trap '[ "$BASH_SUBSHELL" -gt 0 ] || echo "bar $(basename "$0" .sh | tr _ -): SHORT: line $LINENO failed"' ERR

build_tools() {
  scripts/bootstrap.sh > /dev/null
  cmake --preset release > /dev/null
  cmake --build --preset release -j "$(nproc)" --target expertflow_cli > /dev/null
}

# short_of BAR TEXT: the last line of a bar that cannot be met or measured.
short_of() {
  echo "bar $1: SHORT: $2"
  exit 1
}

# written FILE COMMAND...: runs "COMMAND... FILE.part.gguf" unless FILE exists; nothing half-written is left.
written() {
  local file=$1
  shift
  [ -e "$file" ] && return
  rm -f "${file%.gguf}.part.gguf"
  "$@" "${file%.gguf}.part.gguf" >&2
  mv "${file%.gguf}.part.gguf" "$file"
}
quantised() { "$bin" quantize --type "$1" --allow-requantize -q "$2" "$3"; }
widened() { "$bin" widen -q "$3" "$4" "$1" "$2"; }

# model FORMAT [A B]: a file in that format throughout (router and norms apart), widened by A and B; prints its path.
model() {
  local format=$1 a=${2:-1} b=${3:-1} source=models/demo/demo-Q5_K_M.gguf type=${1,,} narrow=$bars/demo-$1.gguf
  local wide=$bars/demo-$1-${a}x$b.gguf
  if [ "$format" = Q4_K ]; then
    type=q4_k_s
    written "$bars/demo-1x2.gguf" widened 1 2 "$source"
    source=$bars/demo-1x2.gguf b=$((b / 2))
  fi
  written "$narrow" quantised "$type" "$source"
  [ "$a" -gt 1 ] || { echo "$narrow"; return; }
  written "$wide" widened "$a" "$b" "$narrow"
  echo "$wide"
}

# json FILE EXPRESSION: a value of a JSON file, as JavaScript says it ("r" is the file).
json() { node -e "const r = JSON.parse(require('fs').readFileSync(process.argv[1])); console.log($2)" "$1"; }
