// Checkpoints with a known model's shape and random weights: what speed is measured on where the model itself cannot be
// had. The numbers are blocks of a normal distribution, so that activations stay finite through all layers; the text
// that such a model writes means nothing.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/quant/formats.h"
#include "expertflow/weights/gguf.h"

namespace ef {

struct RandomShape {
  std::string_view name;
  std::string_view config;  ///< config.json, as the model was published with
};
std::span<const RandomShape> random_shapes();

struct RandomOptions {
  std::string shape;
  std::string type = "q4_k_s";  ///< as quantize's --type
  std::string output_type;      ///< as quantize's --output-type
  int layers = 0;               ///< at most; 0: as many as the model has
  uint64_t at_most = 0;         ///< bytes of tensors: fewer layers where all would take more; 0: no limit
  uint64_t seed = 1;
  int threads = 0;
};

struct RandomTensor {
  std::string name;
  std::vector<int64_t> shape;  ///< row-major
  Format format = Format::kF32;
  int64_t rows() const;
  int64_t cols() const { return shape.back(); }
  uint64_t bytes() const { return uint64_t(rows()) * row_bytes(format, cols()); }
};

struct RandomPlan {
  GgufMetadata metadata;
  std::vector<RandomTensor> tensors;
  int layers = 0, all_layers = 0;
  uint64_t bytes() const;
};
/// ConfigError: no such shape or type, or not even a model of the fewest layers is small enough.
RandomPlan plan_random(const RandomOptions& options);

/// The same bytes for the same plan and seed. DeviceError if the file cannot be written.
void write_random(const RandomPlan& plan, const RandomOptions& options, const std::filesystem::path& file);

}  // namespace ef
