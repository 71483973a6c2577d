// Shared memory of the block that runs: all ones when a block begins, so that what nobody has written shows as NaN.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ef::emulated {

constexpr size_t kMostShared = 227 << 10;  // bytes of dynamic shared memory that a launch may ask for

/// Before every block, which are counted from 0 in each launch.
void fill_shared(size_t dynamic_bytes, uint64_t block);
/// Whether nothing was written behind the dynamic part.
bool shared_end_intact(size_t dynamic_bytes);

}  // namespace ef::emulated
