// The makers that policies.cpp lists, one a file.
#pragma once
#include "expertflow/cache/policy_history.h"

namespace ef {

std::unique_ptr<EvictionPolicy> make_next_use(const PolicyContext& context);
std::unique_ptr<EvictionPolicy> make_lru_high_low(const PolicyContext& context);
std::unique_ptr<EvictionPolicy> make_arc(const PolicyContext& context);
std::unique_ptr<EvictionPolicy> make_s3_fifo(const PolicyContext& context);
std::unique_ptr<EvictionPolicy> make_lru(const PolicyContext& context);
std::unique_ptr<EvictionPolicy> make_lfu(const PolicyContext& context);
std::unique_ptr<EvictionPolicy> make_lfru(const PolicyContext& context);
std::unique_ptr<EvictionPolicy> make_least_stale(const PolicyContext& context);
std::unique_ptr<EvictionPolicy> make_belady(const PolicyContext& context);

}  // namespace ef
