// Layers of one row as a whole against the same backend's compositions one by one: what is left of x and the KV cache.
#include <algorithm>
#include <memory>

#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

struct Case {
  const char* name;
  Format format = Format::kBF16, router = Format::kF32;
  int hidden = 256, heads = 4, kv_heads = 2, dim = 32, ffn = 96, experts = 8, top_k = 2, position = 37;
  KvType kv = KvType::kF16;
  int window = 0;
  bool norms = true, biases = false, sinks = false, interleaved = false;
  RouterScore score = RouterScore::kSoftmax;
  int groups = 1;
};

constexpr int kLayers = 3, kBlock = 16;

struct Layer {
  std::vector<TestMatrix> matrices, experts;
  std::vector<std::unique_ptr<DeviceArray<float>>> vectors;
  std::vector<ExpertView> views;
  Buffer table;
  std::unique_ptr<DeviceArray<std::byte>> keys, values;
  LayerArgs args;
};

// A row and the layers that it goes through, everything from one seed.
class Layers {
 public:
  Layers(Backend& b, const Case& c) : b_(b), c_(c), stream_(b.make_stream()) {
    const int64_t q = int64_t(c.heads) * c.dim, kv = int64_t(c.kv_heads) * c.dim;
    x_ = floats(c.hidden), normed_ = floats(c.hidden), out_ = floats(c.hidden), q_ = floats(q), k_ = floats(kv);
    v_ = floats(kv), attn_ = floats(q), logits_ = floats(c.experts), weights_ = floats(c.top_k);
    cos_ = floats(c.dim / 2), sin_ = floats(c.dim / 2);
    ids_ = std::make_unique<DeviceArray<int32_t>>(b, std::vector<int32_t>(size_t(c.top_k), -1));
    at_ = std::make_unique<DeviceArray<int32_t>>(b, std::vector<int32_t>{c.position, 1});
    std::vector<int32_t> blocks(size_t(2 * max_blocks()));
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = int32_t(i);
    random_.shuffle(blocks);
    blocks_ = std::make_unique<DeviceArray<int32_t>>(b, blocks);
    for (Layer& l : layers_) make(l);
  }

  std::vector<LayerArgs> args() const {
    std::vector<LayerArgs> all;
    for (const Layer& l : layers_) all.push_back(l.args);
    return all;
  }
  // x, then the KV cache of the last layer.
  std::vector<float> run(bool whole) {
    const std::vector<LayerArgs> all = args();
    for (int step = 0; step < 2; ++step) {
      if (whole)
        b_.layers(*stream_, all);
      else
        b_.Backend::layers(*stream_, all);
    }
    stream_->synchronize();
    return x_->read();
  }

 private:
  using Floats = std::unique_ptr<DeviceArray<float>>;
  int max_blocks() const { return c_.position / kBlock + 1; }
  Floats floats(int64_t n) { return std::make_unique<DeviceArray<float>>(b_, random_.floats(n)); }
  const float* vector(Layer& l, int64_t n, bool wanted = true) {
    l.vectors.push_back(floats(n));
    return wanted ? l.vectors.back()->data() : nullptr;
  }
  MatrixView matrix(std::vector<TestMatrix>& to, Format format, int64_t rows, int64_t cols) {
    to.push_back(make_matrix(b_, random_, format, rows, cols, 0.08f));
    return to.back().view;
  }
  void make(Layer& l) {
    const int64_t q = int64_t(c_.heads) * c_.dim, kv = int64_t(c_.kv_heads) * c_.dim;
    LayerArgs& a = l.args;
    a.norm = {NormKind::kRms, 1, c_.hidden, 1e-5f, vector(l, c_.hidden), nullptr, x_->data(), normed_->data()};
    a.q = {matrix(l.matrices, c_.format, q, c_.hidden), vector(l, q, c_.biases), q_->data()};
    a.k = {matrix(l.matrices, c_.format, kv, c_.hidden), vector(l, kv, c_.biases), k_->data()};
    a.v = {matrix(l.matrices, c_.format, kv, c_.hidden), vector(l, kv, c_.biases), v_->data()};
    const int64_t bytes = 2 * max_blocks() * kBlock * kv * 2;
    l.keys = std::make_unique<DeviceArray<std::byte>>(b_, cache(bytes));
    l.values = std::make_unique<DeviceArray<std::byte>>(b_, cache(bytes));
    BatchView batch{1, at_->data(), at_->data() + 1, blocks_->data(), max_blocks()};
    batch.reach = c_.position + 1;
    const KvView view{c_.kv, kBlock, c_.kv_heads, c_.dim, c_.dim, l.keys->data(), l.values->data()};
    a.attend.attention = {view,       batch,        c_.heads, c_.window, 0.2f, vector(l, c_.heads, c_.sinks),
                          q_->data(), attn_->data()};
    a.attend.q = q_->data(), a.attend.k = k_->data(), a.attend.v = v_->data();
    a.attend.q_norm = vector(l, c_.dim, c_.norms), a.attend.k_norm = vector(l, c_.dim, c_.norms);
    a.attend.rotary = c_.dim, a.attend.interleaved = c_.interleaved;
    a.attend.cos = cos_->data(), a.attend.sin = sin_->data();
    a.o = {
        {matrix(l.matrices, c_.format, c_.hidden, q), vector(l, c_.hidden, c_.biases), 1, attn_->data(), out_->data()},
        x_->data(),
        0.5f};
    make_experts(l);
  }
  void make_experts(Layer& l) {
    LayerArgs& a = l.args;
    RouterArgs r;
    r.score = c_.score, r.rows = 1, r.experts = c_.experts, r.top_k = c_.top_k, r.logits = logits_->data();
    r.selection_bias = vector(l, c_.experts, c_.score == RouterScore::kSigmoid);
    r.groups = c_.groups, r.top_groups = std::max(1, c_.groups / 2), r.renormalise = true, r.scale = 0.7f;
    r.ids = ids_->data(), r.weights = weights_->data();
    a.route = {{NormKind::kRms, 1, c_.hidden, 1e-5f, vector(l, c_.hidden), nullptr, x_->data(), normed_->data()},
               matrix(l.matrices, c_.router, c_.experts, c_.hidden),
               vector(l, c_.experts, c_.biases),
               logits_->data(),
               r};
    for (int e = 0; e < c_.experts; ++e)
      l.views.push_back({matrix(l.experts, c_.format, c_.ffn, c_.hidden),
                         matrix(l.experts, c_.format, c_.ffn, c_.hidden),
                         matrix(l.experts, c_.format, c_.hidden, c_.ffn)});
    l.table = b_.expert_table(l.views, *stream_);
    RoutedExpertsArgs& e = a.experts;
    e.rows = 1, e.hidden = c_.hidden, e.ffn = c_.ffn, e.top_k = c_.top_k, e.kind = &l.views.front();
    e.experts = c_.experts, e.table = l.table.data(), e.ids = ids_->data(), e.weights = weights_->data();
    e.x = normed_->data(), e.out = out_->data(), e.add_to = x_->data(), e.add_scale = 0.5f;
  }
  std::vector<std::byte> cache(int64_t bytes) {
    std::vector<std::byte> all(static_cast<size_t>(bytes));
    const Format format = c_.kv == KvType::kF16 ? Format::kF16 : Format::kBF16;
    const std::vector<float> values = random_.floats(bytes / 2);
    format_info(format).quantize(values.data(), all.data(), bytes / 2);
    return all;
  }

  Backend& b_;
  const Case c_;
  std::unique_ptr<Stream> stream_;
  Random random_{23};
  Floats x_, normed_, out_, q_, k_, v_, attn_, logits_, weights_, cos_, sin_;
  std::unique_ptr<DeviceArray<int32_t>> ids_, at_, blocks_;
  Layer layers_[kLayers];
};

class WholeLayers : public ::testing::TestWithParam<BackendMaker> {};

TEST_P(WholeLayers, GiveWhatTheirOpsGive) {
  const Case cases[] = {
      {"plain"},
      {.name = "F16",
       .format = Format::kF16,
       .router = Format::kF16,
       .position = 0,
       .kv = KvType::kBF16,
       .biases = true},
      {.name = "one key head", .heads = 8, .kv_heads = 1, .position = 600, .sinks = true},
      {.name = "window", .hidden = 144, .dim = 48, .position = 700, .window = 300, .interleaved = true},
      {.name = "sigmoid", .ffn = 272, .experts = 40, .top_k = 9, .norms = false, .score = RouterScore::kSigmoid},
      {.name = "groups",
       .router = Format::kBF16,
       .experts = 16,
       .top_k = 3,
       .score = RouterScore::kSigmoid,
       .groups = 4},
      {.name = "after top-k", .hidden = 2064, .experts = 6, .score = RouterScore::kSoftmaxAfterTopK},
      {.name = "many experts", .experts = 300, .top_k = 4},
  };
  ThreadPool pool(2);
  for (const Case& c : cases) {
    const auto backend = GetParam().make(pool);
    Layers whole(*backend, c), parts(*backend, c);
    ASSERT_TRUE(backend->takes_layers(whole.args())) << c.name;
    const std::vector<float> got = whole.run(true), want = parts.run(false);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(std::isfinite(got[i])) << c.name << ", " << i;
      difference += std::pow(double(got[i]) - double(want[i]), 2), norm += std::pow(double(want[i]), 2);
    }
    EXPECT_LE(std::sqrt(difference / norm), 1e-3) << c.name;
  }
}

TEST_P(WholeLayers, AreRefusedWhereTheyAreNoKindOfTheirs) {
  ThreadPool pool(2);
  const auto backend = GetParam().make(pool);
  Layers some(*backend, {"plain"}), blocks(*backend, {.name = "Q8_0", .format = Format::kQ8_0});
  EXPECT_FALSE(backend->takes_layers(blocks.args()));
  const std::vector<LayerArgs> good = some.args();
  const auto refused = [&](auto change) {
    std::vector<LayerArgs> all = good;
    change(all.back());
    return !backend->takes_layers(all);
  };
  EXPECT_FALSE(refused([](LayerArgs&) {}));
  EXPECT_TRUE(refused([](LayerArgs& a) { a.norm.kind = NormKind::kLayer; }));
  EXPECT_TRUE(refused([](LayerArgs& a) { a.attend.attention.batch.rows = 2; }));
  EXPECT_TRUE(refused([](LayerArgs& a) { a.attend.norm_whole = true; }));
  EXPECT_TRUE(refused([](LayerArgs& a) { a.attend.clip = 3; }));
  EXPECT_TRUE(refused([](LayerArgs& a) { a.experts.add_to = nullptr; }));
  EXPECT_TRUE(refused([](LayerArgs& a) { a.o.linear.w.format = Format::kF32; }));
}

std::vector<BackendMaker> whole_makers() {
  ThreadPool pool(1);
  std::vector<BackendMaker> makers = composition_makers();
  std::erase_if(makers, [&](const BackendMaker& maker) { return maker.make(pool)->most_layer_rows() < 1; });
  return makers;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WholeLayers);
INSTANTIATE_TEST_SUITE_P(Backends, WholeLayers, ::testing::ValuesIn(whole_makers()), backend_name);

}  // namespace
}  // namespace ef::testing
