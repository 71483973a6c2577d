// The one table of eviction policies. A new policy is one file with a maker, declared in policy_table.h, and one row
// here; tests/cache/policy_contract_test.cpp picks it up by itself.
#include <array>
#include <string>

#include "expertflow/base/errors.h"
#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

constexpr std::array kPolicies = {
    PolicyInfo{"next-use", "latest expected next use, by rates that are learned while it runs", make_next_use},
    PolicyInfo{"lru", "least recently used", make_lru},
    PolicyInfo{"lfu", "least frequently used, counts halved every 128 steps", make_lfu},
    PolicyInfo{"lfru", "lowest frequency over age", make_lfru},
    PolicyInfo{"least-stale", "unwanted in its layer's latest pass, then layers already passed", make_least_stale},
    PolicyInfo{"lru-high-low", "least recently used of a low queue, then of one for what is recent or predicted",
               make_lru_high_low},
    PolicyInfo{"arc", "adaptive replacement: recency and frequency, whichever missed less", make_arc},
    PolicyInfo{"s3-fifo", "three queues: a small one to prove oneself, the main one, and a memory of who left",
               make_s3_fifo},
    // Behind all that a run may have.
    PolicyInfo{"belady", "what is used again latest, as the trace knows; replays only", make_belady, true},
};
constexpr size_t kOfRuns = kPolicies.size() - 1;

}  // namespace

std::span<const PolicyInfo> policies() { return std::span(kPolicies).first(kOfRuns); }
std::span<const PolicyInfo> replay_policies() { return kPolicies; }

std::unique_ptr<EvictionPolicy> make_policy(std::string_view name, const PolicyContext& context) {
  std::string known;
  for (const PolicyInfo& info : kPolicies) {
    if (info.needs_future && !context.future) {
      EF_CHECK(info.name != name, ConfigError,
               "eviction policy '{}': knows the future, which a replay alone has; known are {}", name, known);
      continue;
    }
    if (info.name == name) return info.make(context);
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  fail<ConfigError>("eviction policy '{}': unknown; known are {}", name, known);
}

}  // namespace ef
