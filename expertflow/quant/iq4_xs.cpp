#include "expertflow/quant/iq4_xs.h"

#include "expertflow/quant/block.h"
#include "expertflow/quant/fit.h"
#include "expertflow/quant/iq4_nl.h"

namespace ef {

namespace {
constexpr CodeBook kIQ4Book(kIQ4Values);
}

void decode(const BlockIQ4_XS& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 8; ++g) {
    const int low = b.scales_l[g / 2] >> (4 * (g % 2)) & 15;
    const int high = b.scales_h >> (2 * g) & 3;
    const float scale = d * ((low | high << 4) - 32);
    for (int j = 0; j < 16; ++j) {
      out[32 * g + j] = scale * kIQ4Values[b.qs[16 * g + j] & 15];
      out[32 * g + j + 16] = scale * kIQ4Values[b.qs[16 * g + j] >> 4];
    }
  }
}

void encode(const float* in, BlockIQ4_XS& b) {
  const SuperBlock<32> s(in);
  double fits[8];
  for (int g = 0; g < 8; ++g) fits[g] = fit_scale(s.group(g), s.group_weights(g), kIQ4Book);
  const SymmetricScales<8> scales(fits, -32, 31);
  b = {};
  b.d = scales.d;
  for (int g = 0; g < 8; ++g) {
    const int scale = scales.scale[g] + 32;
    b.scales_l[g / 2] |= uint8_t((scale & 15) << (4 * (g % 2)));
    b.scales_h |= uint16_t((scale >> 4) << (2 * g));
    for (int i = 0; i < 32 && scales.unit(g) != 0; ++i) {
      const int q = kIQ4Book.nearest(s.x[32 * g + i] / scales.unit(g));
      b.qs[16 * g + i % 16] |= uint8_t(i < 16 ? q : q << 4);
    }
  }
}

}  // namespace ef
