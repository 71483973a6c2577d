#include "attend_decode.cuh"

namespace ef::cuda {
template cudaError_t attend_decode<KvF16>(const AttendParams&, const DecodePlan&, cudaStream_t);
}
