// The CPU backend: the reference for every op test, and the fast paths chosen at run time by instruction set.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/base/thread_pool.h"

namespace ef {

/// Instruction sets, slowest first. kReference is plain C++, one accumulator a lane, the oracle of every test.
enum class Isa : uint8_t { kReference, kAvx2, kAvx512 };

/// What this processor can run, kReference always among them; the last is the best.
std::vector<Isa> supported_isas();
std::string_view isa_name(Isa isa);
/// ConfigError naming the known ones, or saying that this processor lacks it. "auto" is the best.
Isa parse_isa(std::string_view name);

/// Most memory that a backend's own scratch takes, beside arguments and results: attention scores of every thread over
/// `context` positions, and the activations between the two halves of the experts op.
uint64_t cpu_scratch_bytes(int threads, int heads, int kv_heads, int64_t context);

/// pool must outlive the backend.
std::unique_ptr<Backend> make_cpu_backend(ThreadPool& pool, Isa isa);

}  // namespace ef
