#include "expertflow/base/topology.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#ifdef EF_WITH_HWLOC
#include <hwloc.h>
#endif

namespace ef {

namespace {

// cgroup v2 cpu.max ("quota period" or "max period"), then v1's pair of files; 0 when there is no limit.
double cgroup_cpu_quota() {
  std::string quota;
  double period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period && quota != "max" && period > 0)
    return std::stod(quota) / period;
  double q = 0;
  std::ifstream v1q("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1p("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1q >> q && v1p >> period && q > 0 && period > 0) return q / period;
  return 0;
}

std::vector<int> affinity() {
  std::vector<int> processors;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  return processors;
}

int within_quota(int n) {
  if (const double quota = cgroup_cpu_quota(); quota > 0) n = std::min(n, std::max(1, int(std::lround(quota))));
  return std::max(1, n);
}

struct Processor {
  int number, kind, turn;  // kind: larger is faster; turn: how many of its core come before it
};

std::vector<Processor> known_processors() {
  std::vector<Processor> all;
  for (int number : affinity()) all.push_back({number, 0, 0});
#ifdef EF_WITH_HWLOC
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return all;
  if (hwloc_topology_load(topology) == 0) {
    std::vector<int> used(size_t(std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE))), 0);
    for (Processor& p : all) {
      const hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(topology, unsigned(p.number));
      const hwloc_obj_t core = pu ? hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu) : nullptr;
      if (core && core->logical_index < used.size()) p.turn = used[core->logical_index]++;
#if HWLOC_API_VERSION >= 0x00020400
      if (pu) p.kind = std::max(0, hwloc_cpukinds_get_by_cpuset(topology, pu->cpuset, 0));
#endif
    }
  }
  hwloc_topology_destroy(topology);
#endif
  return all;
}

}  // namespace

int available_processors() {
  const auto processors = affinity();
  return within_quota(processors.empty() ? int(std::thread::hardware_concurrency()) : int(processors.size()));
}

Topology read_topology() {
  auto all = known_processors();
  const auto cores = std::count_if(all.begin(), all.end(), [](const Processor& p) { return p.turn == 0; });
  std::stable_sort(all.begin(), all.end(), [](const Processor& a, const Processor& b) {
    return a.turn != b.turn ? a.turn < b.turn : a.kind > b.kind;
  });
  Topology topology;
  for (const Processor& p : all) topology.processors.push_back(p.number);
  topology.threads = cores > 0 ? within_quota(int(cores)) : available_processors();
  return topology;
}

}  // namespace ef
