#!/bin/sh
# Trains four tiny SentencePiece models and records what Debian's spm_encode makes of the test strings: sentencepiece.sh OUT
# (needs the package `sentencepiece`; run after make.mjs).
set -eu
out=$1
here=$(dirname "$0")
mkdir -p "$out/spm"
work=$(mktemp -d)
# One string a line: those with line ends or zero bytes cannot be asked.
node -e '
const fs = require("fs");
const strings = JSON.parse(fs.readFileSync(process.argv[1] + "/components.json")).strings.filter((s) => !/[\n\r\0]/.test(s));
fs.writeFileSync(process.argv[1] + "/spm/strings.txt", strings.join("\n") + "\n");
const all = JSON.parse(fs.readFileSync(process.argv[1] + "/strings.json")).filter((s) => !/[\n\r\0]/.test(s));
fs.writeFileSync(process.argv[2] + "/corpus.txt", all.slice(0, 900).filter((s) => /^[\x20-\u052f]{4,}$/.test(s)).join("\n") + "\n");
' "$out" "$work"
train() {
  name=$1
  shift
  spm_train --input="$work/corpus.txt" --model_prefix="$work/$name" --num_threads=1 --minloglevel=2 --hard_vocab_limit=false "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  cp "$work/$name.model" "$out/spm/$name.model"
  spm_encode --model="$work/$name.model" --output_format=id <"$out/spm/strings.txt" >"$out/spm/$name.ids"
}
train bpe_bytes --model_type=bpe --vocab_size=620 --byte_fallback=true --normalization_rule_name=identity --remove_extra_whitespaces=false --character_coverage=0.98
train bpe_nfkc --model_type=bpe --vocab_size=500 --normalization_rule_name=nmt_nfkc --user_defined_symbols='<think>,ing,  ' --control_symbols='<ctl>' --character_coverage=0.98
train unigram_nfkc --model_type=unigram --vocab_size=400 --normalization_rule_name=nmt_nfkc --user_defined_symbols='<think>,the' --character_coverage=0.98
train unigram_bytes --model_type=unigram --vocab_size=600 --byte_fallback=true --normalization_rule_name=nfkc --add_dummy_prefix=false --split_by_whitespace=false --character_coverage=0.98
rm -r "$work"
