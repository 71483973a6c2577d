// What training has learned about one model: named matrices, as the predictors of the table look for them. Held here
// as float32, read from and written to files elsewhere (engine/predictor_file.h).
//
//   KIND.LAYER.TARGET.weight   [experts, hidden]      heads of "linear", "hybrid" and "pre-attention"
//   (head_predictor.cpp) KIND.LAYER.TARGET.history  [experts, 4 experts]   of "hybrid" and "pre-attention":
//   RouterHistory::features() KIND.LAYER.TARGET.bias     [1, experts + 1]       the last is the slope of RouterOdds
//   forest.nodes              [nodes, 4]             of "forest": Forest::tensor()
//   history.mean               [layers, experts]      mean logits of each layer's router
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/model/config.h"

namespace ef {

struct TrainedTensor {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  ///< [rows, cols]
};

class TrainedPredictor {
 public:
  std::string file;         ///< for messages
  std::string fingerprint;  ///< of the model that it was trained on
  int layers = 0, hidden = 0, experts = 0, top_k = 0;
  std::string best;  ///< the predictor that did best on held-out text, which a file without a kind stands for
  std::map<std::string, TrainedTensor, std::less<>> tensors;

  const TrainedTensor* find(std::string_view name) const;
  /// ModelError naming file and tensor if it is absent or has another shape.
  const TrainedTensor& at(std::string_view name, int64_t rows, int64_t cols) const;
  /// ModelError naming file, field, expected and found, unless it was made for this model.
  void check_made_for(const Config& config, std::string_view model_fingerprint) const;
  bool has(std::string_view kind) const;  ///< any tensor of that kind
};

/// Layers after the first that heads guess from the embedding of a new token: a step looks no further from there while
/// S is 4 or less, and each head is one more for a file to carry.
constexpr int kEmbeddingReach = 3;

/// "KIND.LAYER.TARGET.part"
std::string head_name(std::string_view kind, LayerId layer, LayerId target, std::string_view part);

}  // namespace ef
