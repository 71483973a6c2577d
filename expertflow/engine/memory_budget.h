// How much memory the experts' fast tier may take: what the user asked for, checked against what there is. An explicit
// figure is honoured exactly or refused with the numbers; `auto` takes what is left.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "expertflow/cache/expert_cache.h"

namespace ef {

struct BudgetRequest {
  enum class Kind : uint8_t { kAuto, kMinimum, kBytes, kShare, kSlots };
  Kind kind = Kind::kAuto;
  uint64_t bytes = 0;  ///< kBytes
  double share = 0;    ///< kShare: of all routed experts, 0 < share <= 1
  uint64_t slots = 0;  ///< kSlots: experts of every layer
  std::string text;    ///< as given
};

/// "6GiB", "512MiB", "1.5G", "800MB", "123456" (bytes); "40%" of all experts; "12 slots" of every layer; "min", one
/// slot, the least that works; "auto". K, M, G, T and KiB... are powers of 1024, KB... of 1000; case does not matter.
/// ConfigError otherwise.
BudgetRequest parse_budget(std::string_view text);

/// What the model needs. The rest is memory that is still to be taken when the budget is resolved.
struct BudgetFacts {
  uint64_t expert_bytes = 0;   ///< a pool that holds every expert
  uint64_t largest_slot = 0;   ///< the smallest pool that works
  uint64_t layer_slots = 0;    ///< one slot of every sparse layer
  uint64_t weights_bytes = 0;  ///< weights that are not routed experts
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  uint64_t rest() const { return weights_bytes + kv_bytes + scratch_bytes; }
};
/// The first three, in whole pages.
BudgetFacts budget_facts(const CacheGeometry& geometry);

/// What the machine has. Absent: could not be read, or no limit.
struct MemoryInfo {
  std::optional<uint64_t> total;
  std::optional<uint64_t> available;  ///< MemAvailable, or what is free on a device
  struct Cgroup {
    std::string path;
    uint64_t limit = 0, usage = 0;
    uint64_t reclaimable = 0;  ///< page cache in usage that the kernel gives back: inactive, and half of the active
    uint64_t left() const;
  };
  std::optional<Cgroup> cgroup;  ///< the tightest of the group and those above it
  /// Less than that may be used, and why.
  struct Cap {
    uint64_t bytes = 0;
    std::string why;
  };
  std::optional<Cap> cap;
  /// The smallest of what is known; nothing if nothing is.
  std::optional<uint64_t> left() const;
  std::string text() const;  ///< for messages
};
/// What a plan that takes all there is leaves alone: page tables, buffers of the programs beside us, estimates that are
/// a little off; on a device what the driver takes for kernels and graphs.
uint64_t memory_margin(uint64_t left);
/// Reads proc/meminfo, proc/self/cgroup and sys/fs/cgroup (v1 and v2) below root; tests pass a folder.
MemoryInfo read_memory_info(const std::filesystem::path& root = "/");

struct Budget {
  uint64_t bytes = 0;       ///< effective, at most expert_bytes
  std::string explanation;  ///< one line: the figure, its share, and how it came about
};
/// ConfigError with the numbers if it cannot work: less than the largest slot, or more than there is.
Budget resolve_budget(const BudgetRequest& request, const BudgetFacts& facts, const MemoryInfo& memory);

std::string format_bytes(uint64_t bytes);  ///< "4.80 GiB", "512 B"

}  // namespace ef
