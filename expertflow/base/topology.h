// Which processors this process may compute on, and in which order threads should take them.
#pragma once
#include <vector>

namespace ef {

/// Processors that this process may run on (affinity and cgroup quota respected), at least 1.
int available_processors();

struct Topology {
  /// The processors of the affinity mask as the system numbers them, best first: one of every core before any core's
  /// second, fast kinds of core before slow ones. With hwloc; without it, in the order of their numbers.
  std::vector<int> processors;
  /// Threads that compute fastest when nothing is said: one a core, fewer if a quota allows less.
  int threads = 1;
};
/// Asks the system, which takes milliseconds.
Topology read_topology();
inline int default_threads() { return read_topology().threads; }

}  // namespace ef
