#include "expertflow/quant/q4_0.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"

namespace ef {

void decode(const BlockQ4_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * ((b.qs[j] & 15) - 8);
    out[j + 16] = d * ((b.qs[j] >> 4) - 8);
  }
}

void encode(const float* in, BlockQ4_0& b) {
  float x[32], weights[32];
  for (int i = 0; i < 32; ++i) x[i] = finite_or_zero(in[i]);
  error_weights(x, x, weights);
  b = {};
  b.d = scale_to_f16(fit_scale(x, weights, -8, 7));
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) {
    const int q = quantize_clamped(x[i], d, -8, 7) + 8;
    b.qs[i % 16] |= uint8_t(i < 16 ? q : q << 4);
  }
}

}  // namespace ef
