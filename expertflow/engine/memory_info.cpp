// What the kernel says about memory: /proc/meminfo, and the limits of the control groups that this process is in.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "expertflow/base/errors.h"
#include "expertflow/engine/memory_budget.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

// Version 1 says "no limit" with a number close to 2^63, in whole pages.
constexpr uint64_t kNoLimit = uint64_t(1) << 62;

// A file that holds one number; nothing if it is missing or says "max".
std::optional<uint64_t> read_number(const fs::path& file) {
  std::ifstream in(file);
  uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// "name value" or "name: value kB" lines.
std::optional<uint64_t> read_field(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key, unit;
    uint64_t value = 0;
    if (!(words >> key >> value) || key != name) continue;
    words >> unit;
    return unit == "kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

struct Files {
  const char *limit, *usage, *inactive, *active;
};
constexpr Files kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
constexpr Files kV2{"memory.max", "memory.current", "inactive_file", "active_file"};

// The tightest of `path` below `mount` and all groups above it. In a container the path may be the host's: then only
// its upper part, or the mount itself, exists here.
void tightest(const fs::path& mount, const std::string& path, const Files& files,
              std::optional<MemoryInfo::Cgroup>& best) {
  fs::path relative;
  for (const fs::path& part : fs::path(path))
    if (part != "/" && part != ".." && part != ".") relative /= part;
  for (;; relative = relative.parent_path()) {
    const fs::path folder = mount / relative;
    const auto limit = read_number(folder / files.limit);
    const auto usage = read_number(folder / files.usage);
    if (limit && usage && *limit < kNoLimit) {
      MemoryInfo::Cgroup group{folder.string(), *limit, *usage, 0};
      group.reclaimable = read_field(folder / "memory.stat", files.inactive).value_or(0) +
                          read_field(folder / "memory.stat", files.active).value_or(0) / 2;
      if (!best || group.left() < best->left()) best = group;
    }
    if (relative.empty()) return;
  }
}

}  // namespace

uint64_t MemoryInfo::Cgroup::left() const {
  const uint64_t held = usage - std::min(usage, reclaimable);
  return limit - std::min(limit, held);
}

std::optional<uint64_t> MemoryInfo::left() const {
  std::optional<uint64_t> least = available;
  if (cgroup) least = std::min(cgroup->left(), least.value_or(UINT64_MAX));
  if (cap) least = std::min(cap->bytes, least.value_or(UINT64_MAX));
  return least;
}

std::string MemoryInfo::text() const {
  std::string out = available ? fmt::format("available {}", format_bytes(*available)) : "available memory unknown";
  if (cgroup)
    out += fmt::format(", {}: limit {}, used {}, of which {} can be reclaimed", cgroup->path,
                       format_bytes(cgroup->limit), format_bytes(cgroup->usage), format_bytes(cgroup->reclaimable));
  if (cap) out += fmt::format(", at most {} may be used ({})", format_bytes(cap->bytes), cap->why);
  return out;
}

MemoryInfo read_memory_info(const fs::path& root) {
  MemoryInfo info;
  info.total = read_field(root / "proc/meminfo", "MemTotal:");
  info.available = read_field(root / "proc/meminfo", "MemAvailable:");
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  // hierarchy-ID:controllers:path; version 2 has ID 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      tightest(mount, path, kV2, info.cgroup);
      tightest(mount / "unified", path, kV2, info.cgroup);
    } else if (controllers.find(",memory,") != std::string::npos) {
      tightest(mount / "memory", path, kV1, info.cgroup);
    }
  }
  return info;
}

}  // namespace ef
