#include "attend_prefill.cuh"

namespace ef::cuda {
template cudaError_t attend_prefill<KvF16>(const AttendParams&, const PrefillPlan&, cudaStream_t);
}
