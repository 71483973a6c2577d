// The compositions of backend.h by the fast kernels: which kernel for which shape, and what they need beside.
#pragma once
#include "expertflow/backend/cuda/cuda_ops.h"
#include "expertflow/backend/cuda/cuda_tuning.h"
#include "expertflow/backend/cuda/device/fast.h"

namespace ef::cuda {

/// How products of a backend are computed when rows may depend on their company.
class Fast {
 public:
  /// machine: as Tuning's.
  Fast(bool round_activations, const std::string& machine)
      : meet_(round_activations ? Meet::kQ8 : Meet::kF32), tuning_(machine) {}

  void linear(CudaStream&, const LinearArgs&) const;
  void norm_linear(CudaStream&, const NormLinearArgs&) const;
  void linear_add(CudaStream&, const LinearAddArgs&) const;
  void gated_linear(CudaStream&, const GatedLinearArgs&) const;
  void norm_route(CudaStream&, const NormRouteArgs&) const;
  void attend(CudaStream&, const AttendArgs&) const;
  void routed_experts(CudaStream&, const RoutedExpertsArgs&) const;
  bool takes_layers(std::span<const LayerArgs>) const;
  void layers(CudaStream&, std::span<const LayerArgs>) const;
  int tune(CudaStream&, std::span<const LinearArgs>, std::span<const RoutedExpertsArgs>,
           const std::filesystem::path& file);

 private:
  enum class Way : uint8_t { kByShape, kFewRows, kManyRows };
  void linear(CudaStream&, const LinearArgs&, Way) const;
  void routed(CudaStream&, const RoutedExpertsArgs&, Way) const;
  bool many(Way way, int64_t rows, const MatrixView& w) const;
  Meet meet_;
  Tuning tuning_;
};

/// The table that routed_experts() reads, in the device's memory.
Buffer expert_table(Backend&, std::span<const ExpertView>, CudaStream&);

}  // namespace ef::cuda
