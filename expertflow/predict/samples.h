// What training sees of many steps: for each token the stream at both looks at each layer, and what the routers said.
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "expertflow/base/ids.h"

namespace ef {

/// The stream is kept normalised (not weighted) and rounded to BF16: it is most of the memory.
struct StepSamples {
  int layers = 0, hidden = 0, experts = 0, top_k = 0;
  size_t count = 0;
  std::vector<uint16_t> input, routed;  ///< [count, layers, hidden]
  std::vector<float> logits;            ///< [count, layers, experts]; dense layers: zeros
  std::vector<uint8_t> begins;          ///< [count] the first token of its sequence

  static uint64_t bytes_a_token(int layers, int hidden, int experts) {
    return uint64_t(layers) * (uint64_t(hidden) * 4 + uint64_t(experts) * 8);
  }
};

inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t value) { return std::bit_cast<float>(uint32_t(value) << 16); }

}  // namespace ef
