#include "expertflow/quant/q2_k.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"

namespace ef {

void decode(const BlockQ2_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float dmin = f16_to_f32(b.dmin);
  for (int g = 0; g < 16; ++g) {
    const float scale = d * (b.scales[g] & 15);
    const float minimum = dmin * (b.scales[g] >> 4);
    const uint8_t* qs = b.qs + 32 * (g / 8) + 16 * (g % 2);
    const int shift = g % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) out[16 * g + i] = scale * (qs[i] >> shift & 3) - minimum;
  }
}

void encode(const float* in, BlockQ2_K& b) {
  const SuperBlock<16> s(in);
  AffineFit fits[16];
  fit_groups<16>(s, 3, fits);
  const AffineScales<16> scales(fits, 15);
  b = {};
  b.d = scales.d;
  b.dmin = scales.dmin;
  for (int i = 0; i < 256; ++i) {
    const int g = i / 16;
    b.scales[g] = uint8_t(scales.scale[g] | scales.minimum[g] << 4);
    b.qs[i / 128 * 32 + i % 32] |= uint8_t(scales.code(s.x[i], g, 3) << (i % 128 / 32 * 2));
  }
}

}  // namespace ef
