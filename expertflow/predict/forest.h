// A random forest for regression: 100 trees of depth 10 (arXiv 2510.26730 names these numbers), as flat arrays.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "expertflow/base/thread_pool.h"
#include "expertflow/predict/trained.h"

namespace ef {

/// What is known of one expert of a target when a look at an earlier layer is taken. In this order:
/// gate-ahead's logit of it, in deviations from the edge of the choice; the same from the token's embedding; its router
/// logit at the token before, and the decaying mean of it (RouterHistory); its mean logit over all text; distance;
/// target.
constexpr size_t kForestFeatures = 7;
using ForestRow = std::array<float, kForestFeatures>;

class Forest {
 public:
  static constexpr int kTrees = 100, kDepth = 10;
  /// rows and whether the expert was chosen (0, 1). Deterministic whatever the threads.
  static Forest train(const std::vector<ForestRow>& rows, const std::vector<float>& chosen, ThreadPool& pool,
                      uint64_t seed);
  float predict(const ForestRow& row) const;
  /// [nodes, 4]: feature (-1: a leaf), threshold or value, index of the left child (the right one is beside it), root
  /// (1: a tree begins).
  TrainedTensor tensor() const;
  /// ModelError naming the file if the tensor is no forest: children that do not come later, features that do not
  /// exist.
  static Forest from(const TrainedTensor& tensor, const std::string& file);
  size_t nodes() const { return nodes_.size(); }

 private:
  struct Node {
    int32_t feature = -1, left = 0;
    float value = 0;  ///< threshold: smaller goes left; of a leaf the answer
  };
  std::vector<Node> nodes_;
  std::vector<int32_t> roots_;
};

}  // namespace ef
