#include "tests/cuda_emulation/shared_memory.h"

#include <algorithm>
#include <cstring>

#include "tests/cuda_emulation/include/emulated/block.h"

namespace ef::emulated {
namespace {

constexpr size_t kBehind = 1024;
// At an odd multiple of 16 bytes: kernels are promised no more.
alignas(128) unsigned char g_memory[16 + kMostShared + kBehind];
unsigned char* const g_dynamic = g_memory + 16;

}  // namespace

void* dynamic_shared() { return g_dynamic; }

void fill_shared(size_t dynamic_bytes, bool) { std::memset(g_dynamic, 0xff, dynamic_bytes + kBehind); }

bool shared_end_intact(size_t dynamic_bytes) {
  const unsigned char* end = g_dynamic + dynamic_bytes;
  return std::all_of(end, end + kBehind, [](unsigned char byte) { return byte == 0xff; });
}

}  // namespace ef::emulated
