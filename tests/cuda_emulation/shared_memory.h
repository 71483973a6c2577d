// Shared memory of the block that runs: all ones when a block begins, so that what nobody has written shows as NaN.
#pragma once
#include <cstddef>

namespace ef::emulated {

constexpr size_t kMostShared = 227 << 10;  // bytes of dynamic shared memory that a launch may ask for

/// Before every block; `first` of its launch.
void fill_shared(size_t dynamic_bytes, bool first);
/// Whether nothing was written behind the dynamic part.
bool shared_end_intact(size_t dynamic_bytes);

}  // namespace ef::emulated
