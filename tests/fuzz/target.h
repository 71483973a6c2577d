// What a fuzz target supplies, and what every parsed header must satisfy.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "expertflow/weights/tensor_directory.h"

namespace ef_fuzz {

/// Parses one input. True if it is accepted, false if it is refused with an ef::Error; anything else is a finding.
bool accepts(const uint8_t* data, size_t size);

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

/// A header that was accepted promises this: ranges within the file and apart, sizes that fit shapes, data that can be
/// read.
inline void check_directory(const ef::TensorDirectory& directory, size_t size) {
  uint64_t total = 0;
  for (const ef::TensorInfo& t : directory.tensors()) {
    expect(t.bytes <= size && t.offset <= size - t.bytes, "a range outside of the file");
    total += t.bytes;
    expect(directory.find(t.name) == &t, "a tensor that cannot be found");
    const ef::FormatInfo& info = ef::format_info(t.format);
    expect(t.elements() >= 0 && t.elements() % info.block_elements == 0, "a part of a block");
    expect(uint64_t(t.elements() / info.block_elements) * uint64_t(info.block_bytes) == t.bytes,
           "a size that is not the shape's");
    if (ef::has_arithmetic(t.format)) {
      expect(directory.read_f32(t).size() == size_t(t.elements()), "a number of values");
    } else {
      expect(directory.read(t).size() == t.bytes, "a number of bytes");
    }
  }
  expect(total <= size, "ranges that overlap");
}

}  // namespace ef_fuzz
