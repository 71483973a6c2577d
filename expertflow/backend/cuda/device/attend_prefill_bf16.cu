#include "attend_prefill.cuh"

namespace ef::cuda {
template cudaError_t attend_prefill<KvBF16>(const AttendParams&, const PrefillPlan&, cudaStream_t);
}
