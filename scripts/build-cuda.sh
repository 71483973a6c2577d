#!/usr/bin/env bash
# Compiles the CUDA backend for every supported architecture, where nvcc is; it needs no GPU.
#   scripts/build-cuda.sh            the backend's library
#   scripts/build-cuda.sh TARGET...  other targets of the preset `cuda`, for example expertflow_cli test_contract
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v nvcc >/dev/null && ! [ -x /usr/local/cuda/bin/nvcc ]; then
  echo "build-cuda: nvcc not found, nothing was compiled"
  exit 0
fi
[ $# -gt 0 ] || set -- ef_backend_cuda
cmake --preset cuda ${CMAKE_FLAGS:-}
cmake --build --preset cuda -j "$(nproc)" --target "$@"
