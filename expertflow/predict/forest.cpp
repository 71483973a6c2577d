#include "expertflow/predict/forest.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "expertflow/base/errors.h"

namespace ef {

namespace {

constexpr int kBins = 48, kLeastLeaf = 8;
constexpr size_t kMostOfATree = 24'000;  // rows drawn for each

// Features as bins between quantiles: a split is then looked for among a few sums.
struct Binned {
  std::vector<std::array<uint8_t, kForestFeatures>> rows;
  std::array<std::vector<float>, kForestFeatures> edges;  // bin b holds values below edges[b]
};

Binned bin(const std::vector<ForestRow>& rows) {
  Binned b;
  b.rows.resize(rows.size());
  for (size_t f = 0; f < kForestFeatures; ++f) {
    std::vector<float> values;
    const size_t step = std::max<size_t>(1, rows.size() / 20'000);
    for (size_t i = 0; i < rows.size(); i += step) values.push_back(rows[i][f]);
    std::sort(values.begin(), values.end());
    for (int k = 1; k < kBins; ++k) b.edges[f].push_back(values[values.size() * size_t(k) / kBins]);
    b.edges[f].erase(std::unique(b.edges[f].begin(), b.edges[f].end()), b.edges[f].end());
    for (size_t i = 0; i < rows.size(); ++i)
      b.rows[i][f] = uint8_t(std::upper_bound(b.edges[f].begin(), b.edges[f].end(), rows[i][f]) - b.edges[f].begin());
  }
  return b;
}

struct Split {
  size_t feature = 0;
  int bin = -1;  // rows of this bin and below go left
  double gain = 0;
};

}  // namespace

Forest Forest::train(const std::vector<ForestRow>& rows, const std::vector<float>& chosen, ThreadPool& pool,
                     uint64_t seed) {
  EF_DCHECK(!rows.empty() && rows.size() == chosen.size());
  const Binned binned = bin(rows);
  std::vector<std::vector<Node>> trees(kTrees);
  pool.parallel_for(kTrees, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      std::mt19937_64 random(seed + uint64_t(t));
      std::vector<uint32_t> drawn(std::min(rows.size(), kMostOfATree));
      for (uint32_t& i : drawn) i = uint32_t(random() % rows.size());
      std::vector<Node>& nodes = trees[size_t(t)];
      struct Part {
        int32_t node;
        size_t begin, end;
        int depth;
      };
      nodes.emplace_back();
      std::vector<Part> open{{0, 0, drawn.size(), 0}};
      while (!open.empty()) {
        const Part part = open.back();
        open.pop_back();
        double sum = 0;
        for (size_t i = part.begin; i < part.end; ++i) sum += double(chosen[drawn[i]]);
        const double n = double(part.end - part.begin);
        nodes[size_t(part.node)].value = float(sum / n);
        if (part.depth == kDepth || n < 2 * kLeastLeaf || sum == 0 || sum == n) continue;
        Split best;
        for (size_t f = 0; f < kForestFeatures; ++f) {
          if (random() % 3 == 0) continue;  // each split sees two thirds of the features
          std::array<double, kBins + 1> sums{}, counts{};
          for (size_t i = part.begin; i < part.end; ++i) {
            const uint8_t b = binned.rows[drawn[i]][f];
            sums[b] += double(chosen[drawn[i]]), counts[b] += 1;
          }
          double left = 0, left_n = 0;
          for (size_t b = 0; b < binned.edges[f].size(); ++b) {
            left += sums[b], left_n += counts[b];
            const double right = sum - left, right_n = n - left_n;
            if (left_n < kLeastLeaf || right_n < kLeastLeaf) continue;
            const double gain = left * left / left_n + right * right / right_n - sum * sum / n;
            if (gain > best.gain) best = {f, int(b), gain};
          }
        }
        if (best.bin < 0) continue;
        const auto middle =
            std::stable_partition(drawn.begin() + std::ptrdiff_t(part.begin), drawn.begin() + std::ptrdiff_t(part.end),
                                  [&](uint32_t i) { return binned.rows[i][best.feature] <= best.bin; });
        const auto left = int32_t(nodes.size());
        nodes.resize(nodes.size() + 2);
        Node& node = nodes[size_t(part.node)];
        node.feature = int32_t(best.feature), node.left = left;
        node.value = binned.edges[best.feature][size_t(best.bin)];
        const size_t cut = size_t(middle - drawn.begin());
        open.push_back({left, part.begin, cut, part.depth + 1});
        open.push_back({left + 1, cut, part.end, part.depth + 1});
      }
    }
  });
  Forest forest;
  for (const auto& tree : trees) {
    const auto base = int32_t(forest.nodes_.size());
    forest.roots_.push_back(base);
    for (Node node : tree) {
      if (node.feature >= 0) node.left += base;
      forest.nodes_.push_back(node);
    }
  }
  return forest;
}

float Forest::predict(const ForestRow& row) const {
  float sum = 0;
  for (const int32_t root : roots_) {
    const Node* node = &nodes_[size_t(root)];
    while (node->feature >= 0) node = &nodes_[size_t(node->left + (row[size_t(node->feature)] >= node->value))];
    sum += node->value;
  }
  return sum / float(roots_.size());
}

TrainedTensor Forest::tensor() const {
  TrainedTensor t{int64_t(nodes_.size()), 4, {}};
  size_t next = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const bool root = next < roots_.size() && size_t(roots_[next]) == i;
    next += root;
    t.values.insert(t.values.end(), {float(nodes_[i].feature), nodes_[i].value, float(nodes_[i].left), float(root)});
  }
  return t;
}

Forest Forest::from(const TrainedTensor& t, const std::string& file) {
  constexpr int64_t kMostNodes = 1 << 22;  // indices are exact in float32
  EF_CHECK(t.cols == 4 && t.rows >= 1 && t.rows <= kMostNodes && t.values[3] == 1, ModelError,
           "{}: tensor forest.nodes: expected shape [1 to {}, 4] with a root in front, found [{}, {}]", file,
           kMostNodes, t.rows, t.cols);
  Forest forest;
  for (int64_t i = 0; i < t.rows; ++i) {
    const float* v = &t.values[size_t(4 * i)];
    Node node{int32_t(v[0]), int32_t(v[2]), v[1]};
    EF_CHECK(v[0] >= -1 && v[0] < float(kForestFeatures) && float(node.feature) == v[0], ModelError,
             "{}: tensor forest.nodes: node {}: expected a feature from -1 to {}, found {}", file, i,
             kForestFeatures - 1, v[0]);
    EF_CHECK(node.feature < 0 || (v[2] > float(i) && v[2] + 1 < float(t.rows)), ModelError,
             "{}: tensor forest.nodes: node {}: expected children after it among {}, found {}", file, i, t.rows, v[2]);
    if (v[3] == 1) forest.roots_.push_back(int32_t(i));
    forest.nodes_.push_back(node);
  }
  return forest;
}

}  // namespace ef
