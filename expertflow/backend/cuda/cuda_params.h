// From arguments of backend.h to those of the kernels.
#pragma once
#include "expertflow/backend/backend.h"
#include "expertflow/backend/cuda/device/params.h"

namespace ef::cuda {

Fmt fmt_of(const MatrixView& w);
Weights weights_of(const MatrixView& w, const float* bias);
NormParams norm_params(const NormArgs&);
KvParams kv_of(const KvView& kv, const BatchView& batch);
/// DeviceError where there are more experts than the op takes.
RouteParams route_params(const RouterArgs&);
/// No row's position is this or more.
int64_t reach_of(const AttentionArgs&);

}  // namespace ef::cuda
