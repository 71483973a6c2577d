#!/usr/bin/env bash
# Bar: a model of 6 GB or more under a memory limit of half its size decodes at least 5 times as fast as llama.cpp by
# mmap under the same limit, and a token takes at most 1.2 x max(compute, bytes missed / disk's peak).
set -euo pipefail
source "$(dirname "$0")/models.sh"
build_tools
bench/bars/limited $((256 << 20)) true || short_of larger-than-memory "no memory limit can be set here"
tokens=${TOKENS:-32} repetitions=${REPETITIONS:-2} peer_tokens=${PEER_TOKENS:-8}
file=$(model Q8_0 8 20)
node bench/bars/larger_than_memory.mjs "$file" "$tokens" "$repetitions" "$peer_tokens" || exit 1
