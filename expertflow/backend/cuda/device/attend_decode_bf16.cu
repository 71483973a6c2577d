#include "attend_decode.cuh"

namespace ef::cuda {
template cudaError_t attend_decode<KvBF16>(const AttendParams&, const DecodePlan&, cudaStream_t);
}
