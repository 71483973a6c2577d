#include "tests/cuda_emulation/shared_memory.h"

#include <elf.h>
#include <link.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tests/cuda_emulation/include/emulated/block.h"

namespace ef::emulated {
namespace {

constexpr unsigned char kFresh = 0xff;
constexpr size_t kBehind = 1024;
// At an odd multiple of 16 bytes: kernels are promised no more.
struct alignas(128) Memory {
  unsigned char bytes[16 + kMostShared + kBehind];
};
std::vector<std::unique_ptr<Memory>> g_memories;  // of blocks that run together
unsigned char* g_dynamic = nullptr;

using Variable = std::span<unsigned char>;

// What kernels declare __shared__: the program's own table of symbols has the places, and __shared__ (cuda_runtime.h)
// has put a tag into the names. Nothing where that table was stripped.
std::vector<Variable> shared_variables() {
  std::vector<Variable> found;
  std::ifstream in("/proc/self/exe", std::ios::binary | std::ios::ate);
  std::vector<char> file(in ? size_t(in.tellg()) : 0);
  in.seekg(0).read(file.data(), std::streamsize(file.size()));
  if (!in || file.size() < sizeof(ElfW(Ehdr))) return found;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file.data());
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file.data() + header->e_shoff);
  ElfW(Addr) base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) { return *static_cast<ElfW(Addr)*>(to) = info->dlpi_addr, 1; },
      &base);  // the first is the program
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = file.data() + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file.data() + sections[i].sh_offset);
    for (const auto& symbol : std::span(symbols, sections[i].sh_size / sizeof *symbols))
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC &&
          std::string_view(names + symbol.st_name).find("B9ef_shared") != std::string_view::npos)
        found.emplace_back(reinterpret_cast<unsigned char*>(base + symbol.st_value), symbol.st_size);
  }
  return found;
}

bool is_fresh(Variable bytes) {
  return bytes.empty() || (bytes[0] == kFresh && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

std::vector<Variable> g_used;  // by the launch that runs

}  // namespace

void* dynamic_shared() { return g_dynamic; }

void choose_shared(size_t place) {
  while (g_memories.size() <= place) g_memories.push_back(std::make_unique<Memory>());
  g_dynamic = g_memories[place]->bytes + 16;
}

void fill_shared(size_t dynamic_bytes, uint64_t block) {
  std::memset(g_dynamic, kFresh, dynamic_bytes + kBehind);
  static const std::vector<Variable> all = shared_variables();
  // Most of them belong to other kernels: which do not is looked for now and then.
  if (std::has_single_bit(block)) {
    g_used.clear();
    for (Variable variable : all)
      if (!is_fresh(variable)) g_used.push_back(variable);
  }
  for (Variable variable : block == 0 ? all : g_used) std::memset(variable.data(), kFresh, variable.size());
}

bool shared_end_intact(size_t dynamic_bytes) { return is_fresh({g_dynamic + dynamic_bytes, kBehind}); }

}  // namespace ef::emulated
