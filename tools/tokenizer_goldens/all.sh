#!/bin/sh
# Makes tests/data/text/tokenizers.tar.xz anew: all.sh DEMO_TOKENIZER_JSON (after `npm install` here and `apt-get install sentencepiece`).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
node "$here/make.mjs" "$out" "$1"
"$here/sentencepiece.sh" "$out"
node "$here/llama_cpp.mjs" "$out" 2>/dev/null
tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime=2025-01-01 -cf - . | xz -9e >"$here/../../tests/data/text/tokenizers.tar.xz"
rm -r "$out"
