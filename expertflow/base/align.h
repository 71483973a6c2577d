// Rounding sizes and offsets to multiples.
#pragma once
#include <type_traits>

namespace ef {

/// value >= 0, to >= 1; the sum must not overflow.
template <class T>
constexpr T round_down(T value, std::type_identity_t<T> to) {
  return value - value % to;
}
template <class T>
constexpr T round_up(T value, std::type_identity_t<T> to) {
  return round_down(value + to - 1, to);
}

}  // namespace ef
