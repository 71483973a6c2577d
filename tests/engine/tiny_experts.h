// Small routed experts in memory: random weights, layers of different formats, files that can be made to fail.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"
#include "expertflow/model/experts.h"

namespace ef::testing {

/// Which reads fail, and how. A failing read leaves garbage in part of the buffer, as a short read does.
struct Faults {
  std::atomic<int64_t> reads{0};
  std::atomic<int64_t> fail_from{-1}, fail_to{-1};  ///< reads [fail_from, fail_to) fail; -1: none
  void fail_next(int64_t after, int64_t count) {
    fail_from = reads + after;
    fail_to = reads + after + count;
  }
};

class FaultySource final : public ByteSource {
 public:
  FaultySource(std::shared_ptr<const ByteSource> inner, Faults& faults) : inner_(std::move(inner)), faults_(faults) {}
  const std::string& name() const override { return inner_->name(); }
  uint64_t size() const override { return inner_->size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    const int64_t n = faults_.reads++;
    if (n < faults_.fail_from || n >= faults_.fail_to) return inner_->read(offset, out);
    std::fill(out.begin(), out.begin() + long(out.size() / 2), std::byte{0x3c});
    fail<DeviceError>("{}: read at {}: expected {} bytes, found {}", name(), offset, out.size(), out.size() / 2);
  }

 private:
  std::shared_ptr<const ByteSource> inner_;
  Faults& faults_;
};

struct TinyShape {
  int hidden = 64, ffn = 32, experts = 16, top_k = 4;
  std::vector<Format> layers = {Format::kF32, Format::kBF16,
                                Format::kQ8_0};  ///< of the sparse layers, after a dense one
};

/// Layer 0 is dense, layers 1.. are sparse. Every layer's experts are stacked tensors gate, up, down in a file of its
/// own.
class TinyExperts {
 public:
  explicit TinyExperts(const TinyShape& shape = {}, uint64_t seed = 1) : shape_(shape), random_(seed) {
    config_.hidden = shape.hidden;
    config_.expert_ffn = shape.ffn;
    config_.router.experts = shape.experts;
    config_.router.top_k = shape.top_k;
    config_.layers.resize(shape.layers.size() + 1);
    config_.layers[0].sparse = false;
    std::vector<LayerExperts> layers;
    for (size_t i = 0; i < shape.layers.size(); ++i) layers.push_back(make_layer(LayerId(i + 1), shape.layers[i]));
    directory_.wrap_files([this](std::shared_ptr<const ByteSource> inner) {
      return std::make_shared<FaultySource>(std::move(inner), faults);
    });
    store_ = std::make_unique<ExpertStore>(directory_, std::move(layers));
  }

  const Config& config() const { return config_; }
  const ExpertStore& store() const { return *store_; }
  const TinyShape& shape() const { return shape_; }
  int layers() const { return int(config_.layers.size()); }
  Faults faults;

 private:
  LayerExperts make_layer(LayerId layer, Format format) {
    LayerExperts out;
    out.layer = layer;
    out.experts.resize(size_t(shape_.experts));
    auto bytes = std::make_unique<std::vector<std::byte>>();
    add_part(out, *bytes, ExpertRole::kGate, format, shape_.ffn, shape_.hidden);
    add_part(out, *bytes, ExpertRole::kUp, format, shape_.ffn, shape_.hidden);
    add_part(out, *bytes, ExpertRole::kDown, format, shape_.hidden, shape_.ffn);
    const int file = directory_.add_file(
        std::make_shared<MemorySource>("layer" + std::to_string(layer) + ".bin", std::span<const std::byte>(*bytes)));
    for (auto& sources : out.experts)
      for (auto& source : sources) source.tensor.file = file;
    files_.push_back(std::move(bytes));
    return out;
  }

  void add_part(LayerExperts& layer, std::vector<std::byte>& bytes, ExpertRole role, Format format, int64_t rows,
                int64_t cols) {
    const uint64_t part_bytes = uint64_t(rows) * row_bytes(format, cols);
    layer.layout.parts.push_back({role, format, rows, cols, layer.layout.bytes, part_bytes});
    layer.layout.bytes += (part_bytes + 63) / 64 * 64;
    TensorInfo tensor;
    tensor.name = "experts." + std::to_string(layer.layer) + "." + std::to_string(int(role));
    tensor.format = format;
    tensor.shape = {shape_.experts, rows, cols};
    tensor.offset = bytes.size();
    tensor.bytes = part_bytes * uint64_t(shape_.experts);
    bytes.resize(bytes.size() + tensor.bytes);
    std::vector<float> row(static_cast<size_t>(cols));
    std::normal_distribution<float> normal(0.f, 0.3f);
    for (int64_t r = 0; r < rows * shape_.experts; ++r) {
      for (float& v : row) v = normal(random_);
      format_info(format).quantize(row.data(), bytes.data() + tensor.offset + uint64_t(r) * row_bytes(format, cols),
                                   cols);
    }
    for (int64_t e = 0; e < shape_.experts; ++e) {
      PartSource source;
      source.role = role;
      source.tensor = tensor;
      source.index = e;
      source.stacked = true;
      layer.experts[size_t(e)].push_back(source);
    }
  }

  TinyShape shape_;
  std::mt19937 random_;
  Config config_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> files_;
  TensorDirectory directory_;
  std::unique_ptr<ExpertStore> store_;
};

/// Inputs of one layer event: rows, distinct experts a row in random order, weights.
struct RoutedRows {
  std::vector<float> x, weights;
  std::vector<int32_t> ids;
  int64_t rows = 0;
  int top_k = 0;
  RoutedRows(const TinyShape& shape, int64_t rows, std::mt19937& random) : rows(rows), top_k(shape.top_k) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.1f, 1.f);
    std::vector<int32_t> order(static_cast<size_t>(shape.experts));
    for (size_t e = 0; e < order.size(); ++e) order[e] = int32_t(e);
    for (int64_t r = 0; r < rows; ++r) {
      std::shuffle(order.begin(), order.end(), random);
      ids.insert(ids.end(), order.begin(), order.begin() + shape.top_k);
      for (int k = 0; k < shape.top_k; ++k) weights.push_back(uniform(random));
      for (int i = 0; i < shape.hidden; ++i) x.push_back(normal(random));
    }
  }
  RoutingView view() const { return {rows, top_k, ids.data(), weights.data()}; }
};

}  // namespace ef::testing
