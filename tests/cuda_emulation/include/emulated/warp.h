// What lanes of a warp do together.
#pragma once
#include <cstring>
#include <type_traits>

#include "tests/cuda_emulation/include/emulated/block.h"

namespace ef::emulated {

/// act(parts): what each lane brought, null where it takes no part.
template <class Part, class Together>
void meet_with(uint32_t mask, const char* what, const Place& where, Part& mine, Together) {
  meet(mask, what, where, &mine, [](void* const* lanes) { Together{}(reinterpret_cast<Part* const*>(lanes)); });
}

template <class T>
T from_lane(uint32_t mask, T value, uint32_t lane, const char* what, const Place& where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  struct Part {
    T value;
    uint32_t from;
    T taken;
  } mine{value, lane, value};
  meet_with(mask, what, where, mine, [](Part* const* lanes) {
    for (int i = 0; i < warpSize; ++i) {
      if (!lanes[i]) continue;
      const Part* from = lanes[lanes[i]->from % warpSize];
      // What a lane that takes no part would bring is undefined.
      if (from)
        lanes[i]->taken = from->value;
      else
        std::memset(static_cast<void*>(&lanes[i]->taken), 0xff, sizeof(T));
    }
  });
  return mine.taken;
}

/// All lanes of the mask get join(..., join(lane a, lane b), ...) in ascending order.
template <class T, class Join>
T over_lanes(uint32_t mask, T value, const char* what, const Place& where, Join) {
  struct Part {
    T value;
  } mine{value};
  meet_with(mask, what, where, mine, [](Part* const* lanes) {
    bool first = true;
    T sum{};
    for (int i = 0; i < warpSize; ++i) {
      if (!lanes[i]) continue;
      sum = first ? lanes[i]->value : Join{}(sum, lanes[i]->value);
      first = false;
    }
    for (int i = 0; i < warpSize; ++i)
      if (lanes[i]) lanes[i]->value = sum;
  });
  return mine.value;
}

}  // namespace ef::emulated

#define EF_HERE ef::emulated::Place where = ef::emulated::Place::current()

inline unsigned __activemask() { return ef::emulated::lanes_present(); }

inline void __syncwarp(unsigned mask = 0xffffffffu, EF_HERE) {
  ef::emulated::meet(mask, "__syncwarp", where, nullptr, [](void* const*) {});
}

template <class T>
T __shfl_sync(unsigned mask, T v, int lane, int width = warpSize, EF_HERE) {
  const uint32_t first = ef::emulated::lane_index & ~uint32_t(width - 1);
  return ef::emulated::from_lane(mask, v, first | (uint32_t(lane) & uint32_t(width - 1)), "__shfl_sync", where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = warpSize, EF_HERE) {
  const uint32_t self = ef::emulated::lane_index, place = self & uint32_t(width - 1);
  return ef::emulated::from_lane(mask, v, delta <= place ? self - delta : self, "__shfl_up_sync", where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = warpSize, EF_HERE) {
  const uint32_t self = ef::emulated::lane_index, place = self & uint32_t(width - 1);
  return ef::emulated::from_lane(mask, v, place + delta < uint32_t(width) ? self + delta : self, "__shfl_down_sync",
                                 where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = warpSize, EF_HERE) {
  const uint32_t self = ef::emulated::lane_index, other = self ^ uint32_t(lane_mask);
  const bool later = other / uint32_t(width) > self / uint32_t(width);
  return ef::emulated::from_lane(mask, v, later ? self : other, "__shfl_xor_sync", where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EF_HERE) {
  const unsigned mine = predicate ? 1u << ef::emulated::lane_index : 0u;
  return ef::emulated::over_lanes(mask, mine, "__ballot_sync", where, [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int predicate, EF_HERE) {
  return ef::emulated::over_lanes(mask, int(predicate != 0), "__any_sync", where, [](int a, int b) { return a | b; });
}
inline int __all_sync(unsigned mask, int predicate, EF_HERE) {
  return ef::emulated::over_lanes(mask, int(predicate != 0), "__all_sync", where, [](int a, int b) { return a & b; });
}
template <class T>
unsigned __match_any_sync(unsigned mask, T v, EF_HERE) {
  unsigned same = 0;
  for (int i = 0; i < warpSize; ++i) {
    if (!(mask >> i & 1)) continue;
    const T other = ef::emulated::from_lane(mask, v, uint32_t(i), "__match_any_sync", where);
    if (other == v) same |= 1u << i;
  }
  return same;
}

template <class T>
T __reduce_add_sync(unsigned mask, T v, EF_HERE) {
  return ef::emulated::over_lanes(mask, v, "__reduce_add_sync", where, [](T a, T b) { return T(unsigned(a) + b); });
}
template <class T>
T __reduce_min_sync(unsigned mask, T v, EF_HERE) {
  return ef::emulated::over_lanes(mask, v, "__reduce_min_sync", where, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
T __reduce_max_sync(unsigned mask, T v, EF_HERE) {
  return ef::emulated::over_lanes(mask, v, "__reduce_max_sync", where, [](T a, T b) { return a > b ? a : b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, EF_HERE) {
  return ef::emulated::over_lanes(mask, v, "__reduce_or_sync", where, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned v, EF_HERE) {
  return ef::emulated::over_lanes(mask, v, "__reduce_and_sync", where, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v, EF_HERE) {
  return ef::emulated::over_lanes(mask, v, "__reduce_xor_sync", where, [](unsigned a, unsigned b) { return a ^ b; });
}
#undef EF_HERE
