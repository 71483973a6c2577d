# Sourced by bars of prediction, after models.sh: traces of the bundled model on held-out text, one a domain.
tokens=${TOKENS:-8192}

# build_traces: writes build/bars/heldout-DOMAIN.trace, windows of 1,024 tokens as decoding would have routed them.
build_traces() {
  build_tools
  cmake --build --preset release -j "$(nproc)" --target bench_record_text > /dev/null
  local domain
  for domain in english docs code zh; do
    build/release/bin/bench_record_text models/demo/demo-Q5_K_M.gguf "build/release/predict-text/heldout/$domain.txt" \
      "$bars/heldout-$domain.trace" $((tokens / 1024))
  done
}
