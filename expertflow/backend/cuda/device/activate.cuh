// What a gated feed-forward makes of gate and up.
#pragma once
#include <cuda_runtime.h>

#include "params.h"

namespace ef::cuda {

// 1 / (1 + exp(-a * g)) times g: the product is rounded, and for large arguments that shows in the exponential unless
// what was rounded away is put back.
__device__ inline float scaled_swish(float g, float a) {
  const float t = a * g, lost = fmaf(a, g, -t);
  return g / (1.f + expf(-t) * (1.f - (isinf(t) ? 0.f : lost)));
}

__device__ inline float activate(Act kind, float alpha, float limit, float g, float u) {
  switch (kind) {
    case Act::kSilu:
      return g / (1.f + expf(-g)) * u;
    case Act::kGelu:
      return 0.5f * g * erfcf(g * -0.70710678118654752f) * u;
    case Act::kGeluTanh: {
      const float t = 0.79788456080286536f * (g + 0.044715f * g * g * g);
      return g / (1.f + expf(-2.f * t)) * u;
    }
    default:
      // Written so that a NaN stays.
      g = g > limit ? limit : g;
      u = u > limit ? limit : u < -limit ? -limit : u;
      return (u + 1.f) * scaled_swish(g, alpha);
  }
}

}  // namespace ef::cuda
