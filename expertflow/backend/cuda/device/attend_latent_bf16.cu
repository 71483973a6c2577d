#include "attend_latent.cuh"

namespace ef::cuda {
template cudaError_t attend_latent<KvBF16>(const AttendParams&, const LatentPlan&, cudaStream_t);
}
