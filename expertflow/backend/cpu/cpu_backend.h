// The CPU backend: the reference for every op test, and the fast paths chosen at run time by instruction set.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/base/thread_pool.h"

namespace ef {

/// Instruction sets, slowest first. kReference is plain C++, one accumulator a lane, the oracle of every test.
/// kAvx512Bf16 rounds activations to BF16 before products with BF16 weights; it is used on request only.
enum class Isa : uint8_t { kReference, kAvx2, kAvx2Vnni, kAvx512, kAvx512Vnni, kAvx512Bf16 };

/// What this processor can run, kReference always among them.
std::vector<Isa> supported_isas();
/// The fastest of them that rounds activations for weights of 8 bits and fewer only: "auto".
Isa default_isa();
std::string_view isa_name(Isa isa);
/// ConfigError naming the known ones, or saying that this processor lacks it. "auto" is default_isa().
Isa parse_isa(std::string_view name);

/// Most memory that a backend's own scratch takes, beside arguments and results: attention scores of every thread over
/// `context` positions, and the activations between the two halves of the experts op.
uint64_t cpu_scratch_bytes(int threads, int heads, int kv_heads, int64_t context);

/// What activations are multiplied as where weights have 8 bits and fewer: rounded to 8 bits themselves, a scale for 32
/// (fast: integer arithmetic), or float32 (slow, the reference's arithmetic). kReference always takes float32.
enum class Activations : uint8_t { kQ8, kF32 };
/// "q8" or "f32"; ConfigError otherwise.
Activations parse_activations(std::string_view name);

/// pool must outlive the backend.
std::unique_ptr<Backend> make_cpu_backend(ThreadPool& pool, Isa isa, Activations activations = Activations::kQ8);

}  // namespace ef
