#include <sys/utsname.h>

#include <filesystem>
#include <fstream>

#include "expertflow/base/topology.h"
#include "expertflow/measure/probe.h"

namespace ef {

namespace {

namespace fs = std::filesystem;

// The value of the first line "key : value".
std::string field(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

uint64_t last_level_cache() {
  uint64_t largest = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/cpu/cpu0/cache", ignored)) {
    std::ifstream in(entry.path() / "size");
    uint64_t size = 0;
    char unit = 0;
    if (in >> size >> unit) largest = std::max(largest, size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0));
  }
  return largest;
}

}  // namespace

MachineFacts machine_facts() {
  MachineFacts facts;
  facts.cpu = field("/proc/cpuinfo", "model name");
  facts.processors = available_processors();
  facts.memory_bytes = std::strtoull(field("/proc/meminfo", "MemTotal").c_str(), nullptr, 10) * 1024;
  facts.last_level_cache = last_level_cache();
  utsname name{};
  if (uname(&name) == 0) facts.kernel = std::string(name.sysname) + " " + name.release;
  return facts;
}

}  // namespace ef
