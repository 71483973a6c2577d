#include "bench/gpu/random_checkpoint.h"

#include <algorithm>
#include <future>
#include <map>
#include <random>

#include "expertflow/base/errors.h"
#include "expertflow/base/thread_pool.h"
#include "expertflow/convert/families.h"
#include "expertflow/convert/quantize_rules.h"
#include "expertflow/model/arch.h"
#include "expertflow/weights/writers.h"

namespace ef {
namespace {

using nlohmann::json;

const RandomShape& find_shape(const std::string& name) {
  std::string known;
  for (const RandomShape& shape : random_shapes()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + std::string(shape.name);
  }
  fail<ConfigError>("--shape: expected one of {}, found \"{}\"", known, name);
}

const Architecture& architecture_of(const json& config) {
  for (const Architecture& arch : architectures())
    for (const std::string_view type : arch.hf_types)
      if (type == config.at("model_type").get<std::string>()) return arch;
  fail<ConfigError>("{}: no such architecture", config.at("model_type").dump());
}

std::string fill_in(std::string_view pattern, size_t layer) {
  std::string name(pattern.substr(0, pattern.find('|')));
  const size_t at = name.find("{l}");
  return at == std::string::npos ? name : name.replace(at, 3, std::to_string(layer));
}

// The tensors of a GGUF as the architecture's tables have them.
class Lister {
 public:
  Lister(const Architecture& arch, const ConversionFamily& family, const Config& config, const QuantRules& rules)
      : arch_(arch), family_(family), config_(config), rules_(rules) {}

  std::vector<RandomTensor> run() {
    for (const TensorSpec& spec : arch_.tensors)
      if (spec.in == TensorSpec::In::kModel) add(spec, 0);
    for (size_t l = 0; l < config_.layers.size(); ++l) {
      for (const TensorSpec& spec : arch_.tensors) {
        if (spec.in == TensorSpec::In::kModel) continue;
        if (spec.in == TensorSpec::In::kSparseLayers && !config_.layers[l].sparse) continue;
        if (spec.in == TensorSpec::In::kDenseLayers && config_.layers[l].sparse) continue;
        add(spec, l);
      }
      if (config_.layers[l].sparse) add_experts(l);
    }
    return std::move(tensors_);
  }

 private:
  void add(const TensorSpec& spec, size_t layer) {
    if (!spec.gguf || spec.optional || (spec.applies && !spec.applies(config_))) return;
    if (spec.role == Role::kHead && config_.tied_embeddings) return;
    const int64_t rows = dim_value(config_, spec.rows), cols = dim_value(config_, spec.cols);
    if (rows == 0 || cols == 0) return;
    std::vector<int64_t> shape = {rows, cols};
    if (spec.rows == Dim::kNone) shape = {cols};
    if (spec.role == Role::kKB || spec.role == Role::kVB) shape = {config_.heads, rows / config_.heads, cols};
    add(fill_in(spec.role == Role::kFfnNorm ? family_.gguf_ffn_norm : spec.gguf, layer), std::move(shape));
  }
  void add(std::string name, std::vector<int64_t> shape) {
    const auto choice = rules_.choose(name, shape);
    tensors_.push_back({std::move(name), std::move(shape), choice ? choice->format : Format::kF32});
  }
  void add_experts(size_t layer) {
    const ExpertSpec& spec = arch_.gguf_experts.front();
    const int64_t n = config_.router.experts, hidden = config_.hidden, ffn = config_.expert_ffn;
    add(fill_in(spec.gate, layer), {n, ffn, hidden});
    add(fill_in(spec.up, layer), {n, ffn, hidden});
    add(fill_in(spec.down, layer), {n, hidden, ffn});
    if (spec.gate_bias) add(fill_in(spec.gate_bias, layer), {n, ffn});
    if (spec.up_bias) add(fill_in(spec.up_bias, layer), {n, ffn});
    if (spec.down_bias) add(fill_in(spec.down_bias, layer), {n, hidden});
  }

  const Architecture& arch_;
  const ConversionFamily& family_;
  const Config& config_;
  const QuantRules& rules_;
  std::vector<RandomTensor> tensors_;
};

RandomPlan plan_layers(const RandomOptions& o, json shape, int layers) {
  RandomPlan plan;
  plan.all_layers = shape.at("num_hidden_layers").get<int>();
  plan.layers = layers > 0 ? std::min(layers, plan.all_layers) : plan.all_layers;
  shape["num_hidden_layers"] = plan.layers;
  const Architecture& arch = architecture_of(shape);
  Config config = arch.from_hf(shape, json::object());
  const ConversionFamily* family = find_family(arch.name);
  EF_CHECK(family, ConfigError, "--shape: {} has no form as a GGUF", arch.name);
  config.split_kv_b = family->split_kv_b;
  validate(config, o.shape);

  const QuantType& type = find_quant_type("--type", o.type);
  QuantRules rules;
  rules.type = &type;
  if (!o.output_type.empty()) rules.output = find_plain_type("--output-type", o.output_type);
  rules.layers = plan.layers, rules.experts = config.router.experts, rules.tied = config.tied_embeddings;

  set_text(plan.metadata, "general.name", o.shape + ", random weights");
  set_integer(plan.metadata, "general.file_type", type.file_type);
  set_text(plan.metadata, "tokenizer.ggml.model", "none");
  write_gguf_config(*family, config, plan.metadata);
  plan.tensors = Lister(arch, *family, config, rules).run();
  return plan;
}

// splitmix64: any index without the ones before it.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Blocks of one format, of which rows are cut: quantising every number anew would take longer than all that is
// measured.
class Pool {
 public:
  Pool(Format format, double mean, double deviation, uint64_t seed)
      : unit_(uint64_t(format_info(format).block_bytes)), elements_(format_info(format).block_elements) {
    std::mt19937_64 random(mix(seed ^ uint64_t(format) << 32));
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<float> values(kElements);
    for (float& v : values) v = float(normal(random));
    blocks_.resize(row_bytes(format, kElements));
    format_info(format).quantize(values.data(), blocks_.data(), kElements);
  }
  /// A row of `bytes` bytes, anywhere in the pool.
  const std::byte* row(uint64_t bytes, uint64_t key) const {
    const uint64_t places = (blocks_.size() - bytes) / unit_ + 1;
    return blocks_.data() + mix(key) % places * unit_;
  }
  int64_t longest() const { return int64_t(blocks_.size() / unit_) * elements_; }

 private:
  static constexpr int64_t kElements = 1 << 20;
  uint64_t unit_;
  int64_t elements_;
  std::vector<std::byte> blocks_;
};

class Pools {
 public:
  explicit Pools(uint64_t seed) : seed_(seed) {}
  const Pool& of(const RandomTensor& tensor) {
    // Outputs of a matrix stay near the size of its input; norms near one keep it so from layer to layer.
    constexpr double kDeviation = 0.02, kNormDeviation = 0.05;
    const bool norm = tensor.name.ends_with("norm.weight");
    const auto key = std::make_pair(tensor.format, norm);
    auto it = pools_.find(key);
    if (it == pools_.end())
      it = pools_.emplace(key, Pool(tensor.format, norm ? 1 : 0, norm ? kNormDeviation : kDeviation, seed_)).first;
    EF_CHECK(tensor.cols() <= it->second.longest(), ConfigError, "{}: expected rows of at most {} numbers, found {}",
             tensor.name, it->second.longest(), tensor.cols());
    return it->second;
  }

 private:
  uint64_t seed_;
  std::map<std::pair<Format, bool>, Pool> pools_;
};

// Rows are put together by all threads while the buffer before is being written.
class Writing {
 public:
  Writing(CheckpointWriter& writer, int threads) : writer_(writer), threads_(threads) {}
  ~Writing() {
    if (pending_.valid()) pending_.wait();
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

  void tensor(const RandomTensor& t, const Pool& pool, uint64_t key) {
    const uint64_t row = row_bytes(t.format, t.cols());
    const int64_t step = std::max<int64_t>(1, int64_t(kBuffer / row)), grain = std::max<int64_t>(1, step / 64);
    for (int64_t at = 0; at < t.rows(); at += step) {
      const int64_t n = std::min(step, t.rows() - at);
      std::vector<std::byte>& buffer = buffers_[next_];
      next_ = 1 - next_;
      buffer.resize(uint64_t(n) * row);
      threads_.parallel_for(n, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r)
          std::copy_n(pool.row(row, key + uint64_t(at + r)), row, buffer.data() + uint64_t(r) * row);
      });
      wait();
      pending_ = std::async(std::launch::async, [this, &buffer] { writer_.write(buffer); });
    }
  }
  void wait() {
    if (pending_.valid()) pending_.get();
  }

 private:
  static constexpr uint64_t kBuffer = 32 << 20;
  CheckpointWriter& writer_;
  ThreadPool threads_;
  std::vector<std::byte> buffers_[2];
  int next_ = 0;
  std::future<void> pending_;
};

}  // namespace

int64_t RandomTensor::rows() const {
  int64_t n = 1;
  for (size_t d = 0; d + 1 < shape.size(); ++d) n *= shape[d];
  return n;
}

uint64_t RandomPlan::bytes() const {
  uint64_t sum = 0;
  for (const RandomTensor& t : tensors) sum += t.bytes();
  return sum;
}

RandomPlan plan_random(const RandomOptions& o) {
  const json shape = json::parse(find_shape(o.shape).config);
  EF_CHECK(o.layers >= 0 && o.layers <= kMaxLayers, ConfigError, "--layers: expected 0 to {}, found {}", kMaxLayers,
           o.layers);
  RandomPlan plan = plan_layers(o, shape, o.layers);
  if (o.at_most == 0 || plan.bytes() <= o.at_most) return plan;
  // Two layers hold one of each kind in every shape. Layers differ little in size: the first guess is nearly right.
  constexpr int kFewest = 2;
  const uint64_t fewest = plan_layers(o, shape, kFewest).bytes();
  EF_CHECK(plan.layers > kFewest && fewest <= o.at_most, ConfigError,
           "--at-most: {} layers take {} bytes, {} are allowed", kFewest, fewest, o.at_most);
  const double layer = double(plan.bytes() - fewest) / (plan.layers - kFewest);
  int layers = std::min(plan.layers - 1, kFewest + 1 + int(double(o.at_most - fewest) / layer));
  do plan = plan_layers(o, shape, layers--);
  while (plan.bytes() > o.at_most);
  return plan;
}

void write_random(const RandomPlan& plan, const RandomOptions& o, const std::filesystem::path& file) {
  const auto writer = make_gguf_writer(file, plan.metadata);
  for (const RandomTensor& t : plan.tensors) writer->declare(t.name, t.format, t.shape);
  Pools pools(o.seed);
  {
    Writing writing(*writer, o.threads);
    uint64_t key = mix(o.seed);
    for (const RandomTensor& t : plan.tensors) {
      writing.tensor(t, pools.of(t), key);
      key += uint64_t(t.rows());
    }
    writing.wait();
  }
  writer->finish();
}

}  // namespace ef
