// Rows of a large step, put together by likeness: rows whose embeddings are near choose more of the same experts, so
// that each block of them needs fewer distinct ones.
#pragma once
#include <cstdint>
#include <vector>

namespace ef {

/// An order of rows 0..rows-1 in which each `block` of them holds neighbours: as many seeds as blocks, each the
/// farthest from those before it (the first is row 0), then every row goes to the nearest seed whose block has room,
/// the rows with the clearest preference first. x: [rows, width] on the host. O(rows * blocks * width). Deterministic.
std::vector<int32_t> group_rows(const float* x, int64_t rows, int64_t width, int64_t block);

}  // namespace ef
