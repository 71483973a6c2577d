#include "expertflow/quant/q4_1.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"

namespace ef {

void decode(const BlockQ4_1& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * (b.qs[j] & 15) + m;
    out[j + 16] = d * (b.qs[j] >> 4) + m;
  }
}

void encode(const float* in, BlockQ4_1& b) {
  float x[32], weights[32];
  for (int i = 0; i < 32; ++i) x[i] = finite_or_zero(in[i]);
  error_weights(x, x, weights);
  const AffineFit fit = fit_affine(x, weights, 15, true);
  b = {};
  b.d = scale_to_f16(fit.scale);
  b.m = scale_to_f16(fit.offset);
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  for (int i = 0; i < 32; ++i) {
    const int q = quantize_clamped(double(x[i]) - m, d, 0, 15);
    b.qs[i % 16] |= uint8_t(i < 16 ? q : q << 4);
  }
}

}  // namespace ef
