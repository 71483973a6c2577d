#!/usr/bin/env bash
# Makes tests/fixtures.tar.xz: one solid archive, so that a GGUF copy of a checkpoint costs almost nothing beside the original.
#   tools/pack_fixtures.sh FIXTURES DEMO
# FIXTURES holds README.md, hf/, gguf/ and quant/; DEMO is the demo model's full folder (golden.safetensors, report.json,
# heldout/stories.txt). Equal inputs give equal bytes with the same xz.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 FIXTURES DEMO" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp -r "$1"/README.md "$1"/hf "$1"/gguf "$1"/quant "$stage/"
mkdir "$stage/demo"
cp "$2"/golden.safetensors "$2"/report.json "$stage/demo/"
head -c 300000 "$2"/heldout/stories.txt > "$stage/demo/stories-300k.txt"
chmod -R u+w "$stage"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' -C "$stage" -cf - . |
  xz -T1 --lzma2=preset=9e,lc=1,lp=2,pb=2 > "$root/tests/fixtures.tar.xz"
ls -l "$root/tests/fixtures.tar.xz"
