#include "expertflow/quant/q5_1.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"

namespace ef {

void decode(const BlockQ5_1& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  for (int j = 0; j < 16; ++j) {
    const int high0 = (b.qh[j / 8] >> (j % 8) & 1) << 4;
    const int high1 = (b.qh[j / 8 + 2] >> (j % 8) & 1) << 4;
    out[j] = d * ((b.qs[j] & 15) | high0) + m;
    out[j + 16] = d * ((b.qs[j] >> 4) | high1) + m;
  }
}

void encode(const float* in, BlockQ5_1& b) {
  float x[32], weights[32];
  for (int i = 0; i < 32; ++i) x[i] = finite_or_zero(in[i]);
  error_weights(x, x, weights);
  const AffineFit fit = fit_affine(x, weights, 31, true);
  b = {};
  b.d = scale_to_f16(fit.scale);
  b.m = scale_to_f16(fit.offset);
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  for (int i = 0; i < 32; ++i) {
    const int q = quantize_clamped(double(x[i]) - m, d, 0, 31);
    b.qs[i % 16] |= uint8_t(i < 16 ? q & 15 : (q & 15) << 4);
    b.qh[i / 8] |= uint8_t((q >> 4) << (i % 8));
  }
}

}  // namespace ef
