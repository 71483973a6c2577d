#include "expertflow/predict/trained.h"

#include <fmt/format.h>

#include "expertflow/base/errors.h"

namespace ef {

const TrainedTensor* TrainedPredictor::find(std::string_view name) const {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

const TrainedTensor& TrainedPredictor::at(std::string_view name, int64_t rows, int64_t cols) const {
  const TrainedTensor* tensor = find(name);
  EF_CHECK(tensor != nullptr, ModelError, "{}: expected a tensor {}, found none", file, name);
  EF_CHECK(tensor->rows == rows && tensor->cols == cols, ModelError,
           "{}: tensor {}: expected shape [{}, {}], found [{}, {}]", file, name, rows, cols, tensor->rows,
           tensor->cols);
  return *tensor;
}

void TrainedPredictor::check_made_for(const Config& config, std::string_view model_fingerprint) const {
  const auto expect = [&](const char* what, int64_t found, int64_t expected) {
    EF_CHECK(found == expected, ModelError, "{}: this predictor was trained on another model: {} expected {}, found {}",
             file, what, expected, found);
  };
  expect("layers:", layers, int64_t(config.layers.size()));
  expect("hidden size:", hidden, config.hidden);
  expect("experts:", experts, config.router.experts);
  expect("experts a token:", top_k, config.router.top_k);
  EF_CHECK(fingerprint == model_fingerprint, ModelError,
           "{}: this predictor was trained on another model: fingerprint of the routers expected {}, found {}", file,
           model_fingerprint, fingerprint);
}

bool TrainedPredictor::has(std::string_view kind) const {
  const std::string prefix = std::string(kind) + ".";
  const auto it = tensors.lower_bound(prefix);
  return it != tensors.end() && it->first.compare(0, prefix.size(), prefix) == 0;
}

std::string head_name(std::string_view kind, LayerId layer, LayerId target, std::string_view part) {
  return fmt::format("{}.{}.{}.{}", kind, layer, target, part);
}

}  // namespace ef
