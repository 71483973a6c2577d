// Shared memory of the block that runs: all ones when a block begins, so that what nobody has written shows as NaN.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ef::emulated {

constexpr size_t kMostShared = 227 << 10;  // bytes of dynamic shared memory that a launch may ask for

/// From here on the dynamic part is that of the block at this place among those that run together, else 0. What kernels
/// declare __shared__ is one for all: kernels whose blocks wait for each other have none.
void choose_shared(size_t place);
/// Before every block, which are counted from 0 in each launch.
void fill_shared(size_t dynamic_bytes, uint64_t block);
/// Whether nothing was written behind the dynamic part.
bool shared_end_intact(size_t dynamic_bytes);

}  // namespace ef::emulated
