#include "expertflow/quant/q3_k.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"

namespace ef {

void decode(const BlockQ3_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) {
    const int low = b.scales[g % 8] >> (4 * (g / 8)) & 15;
    const int high = b.scales[8 + g % 4] >> (2 * (g / 4)) & 3;
    const float scale = d * ((low | high << 4) - 32);
    const int first = 16 * (g % 2);
    const uint8_t* qs = b.qs + 32 * (g / 8) + first;
    const uint8_t* third = b.hmask + first;
    const int shift = g % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) {
      const int q = (qs[i] >> shift & 3) | (third[i] >> (g / 2) & 1) << 2;
      out[16 * g + i] = scale * (q - 4);
    }
  }
}

void encode(const float* in, BlockQ3_K& b) {
  const SuperBlock<16> s(in);
  double fits[16];
  for (int g = 0; g < 16; ++g) fits[g] = fit_scale(s.group(g), s.group_weights(g), -4, 3);
  const SymmetricScales<16> scales(fits, -32, 31);
  b = {};
  b.d = scales.d;
  for (int g = 0; g < 16; ++g) {
    const int scale = scales.scale[g] + 32;
    b.scales[g % 8] |= uint8_t((scale & 15) << (4 * (g / 8)));
    b.scales[8 + g % 4] |= uint8_t((scale >> 4) << (2 * (g / 4)));
    for (int i = 16 * g; i < 16 * g + 16; ++i) {
      const int q = quantize_clamped(s.x[i], scales.unit(g), -4, 3) + 4;
      b.qs[i / 128 * 32 + i % 32] |= uint8_t((q & 3) << (i % 128 / 32 * 2));
      b.hmask[i % 32] |= uint8_t((q >> 2) << (i / 32));
    }
  }
}

}  // namespace ef
