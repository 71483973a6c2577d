// What matvec() and routed_matvec() hand on: one row of activations with weights of 16 bits (single_row.cuh).
#pragma once
#include "fast.h"

namespace ef::cuda {

/// Widths that are multiples of 256, and above 2,048 a power of two times that; RMS norms up to 2,048; one format.
bool single_matvec_takes(const MatvecParams&);
cudaError_t single_matvec(const MatvecParams&, cudaStream_t);

/// Multiples of 256 up to 2,048 wide, up to 32 experts a row; middle: [top_k, ffn].
bool single_routed_takes(const RoutedParams&);
cudaError_t single_routed(const RoutedParams&, float* middle, cudaStream_t);

}  // namespace ef::cuda
