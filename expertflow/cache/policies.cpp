// The one table of eviction policies. A new policy is one file with a maker, declared in policy_table.h, and one row
// here; tests/cache/policy_contract_test.cpp picks it up by itself.
#include <array>
#include <string>

#include "expertflow/base/errors.h"
#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

constexpr std::array kPolicies = {
    PolicyInfo{"lru", "least recently used", make_lru},
    PolicyInfo{"lfu", "least frequently used, counts halved every 128 steps", make_lfu},
    PolicyInfo{"lfru", "lowest frequency over age", make_lfru},
    PolicyInfo{"least-stale", "unwanted in its layer's latest pass, then layers already passed", make_least_stale},
};

}  // namespace

std::span<const PolicyInfo> policies() { return kPolicies; }

std::unique_ptr<EvictionPolicy> make_policy(std::string_view name, const PolicyContext& context) {
  std::string known;
  for (const PolicyInfo& info : kPolicies) {
    if (info.name == name) return info.make(context);
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  fail<ConfigError>("eviction policy '{}': unknown; known are {}", name, known);
}

}  // namespace ef
