// From the ops of backend.h to launches of kernels: checks of what kernels assume, and the tables that they read.
#pragma once
#include "expertflow/backend/backend.h"
#include "expertflow/backend/cuda/cuda_stream.h"

namespace ef::cuda {

/// Most floats of scratch that one launch of attention or experts takes, unless a single row needs more; larger calls
/// go in waves (rows are independent).
constexpr uint64_t kWaveFloats = 32 << 20;

void embed(CudaStream&, const MatrixView& table, const TokenId* ids, int64_t n, float scale, float* out);
void linear(CudaStream&, const LinearArgs&);
void head_linear(CudaStream&, const HeadLinearArgs&);
void experts(CudaStream&, const ExpertsArgs&);
void store_kv(CudaStream&, const StoreKvArgs&);
void attention(CudaStream&, const AttentionArgs&);
void route(CudaStream&, const RouterArgs&);
void norm(CudaStream&, const NormArgs&);
void rope(CudaStream&, const RopeArgs&);
void top(CudaStream&, const TopArgs&);
void activation(CudaStream&, const ActivationArgs&);

}  // namespace ef::cuda
