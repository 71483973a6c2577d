// Names of things: layers, experts, tokens, sequences.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace ef {

using TokenId = int32_t;
using LayerId = int32_t;   ///< index among all decoder layers, dense ones included
using ExpertId = int32_t;  ///< index among the routed experts of one layer

/// One routed expert of the model: the unit that is cached, copied and predicted.
struct ExpertKey {
  LayerId layer = -1;
  ExpertId expert = -1;
  auto operator<=>(const ExpertKey&) const = default;
};

}  // namespace ef

template <>
struct std::hash<ef::ExpertKey> {
  size_t operator()(const ef::ExpertKey& key) const noexcept {
    return std::hash<uint64_t>{}((uint64_t(uint32_t(key.layer)) << 32) | uint32_t(key.expert));
  }
};
