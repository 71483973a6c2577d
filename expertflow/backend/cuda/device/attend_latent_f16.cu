#include "attend_latent.cuh"

namespace ef::cuda {
template cudaError_t attend_latent<KvF16>(const AttendParams&, const LatentPlan&, cudaStream_t);
}
