// Fixtures for tests of the engine: opened whole, opened changed or with faulty files, or put together by hand where a
// test needs a KV cache or a thread pool that the engine does not offer.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/sequence.h"
#include "tests/model/editable_checkpoint.h"
#include "tests/support/golden.h"

namespace ef::testing {

/// open_model() over a checkpoint that is open already.
inline std::unique_ptr<ModelFiles> model_of(Checkpoint checkpoint) {
  auto files = std::make_unique<ModelFiles>();
  files->checkpoint = std::move(checkpoint);
  files->arch = &find_architecture(files->checkpoint);
  files->config = read_config(*files->arch, files->checkpoint);
  files->binding = bind(*files->arch, files->config, files->checkpoint);
  files->store = std::make_unique<ExpertStore>(files->checkpoint.directory, std::move(files->binding.experts));
  files->binding.experts.clear();
  return files;
}

inline EngineOptions small_engine(const std::string& budget = "100%") {
  EngineOptions o;
  o.expert_memory = budget;
  o.ctx_size = 256;
  o.ubatch = 256;
  o.threads = 2;
  o.cache_type_k = o.cache_type_v = "f32";
  return o;
}

inline std::unique_ptr<Engine> engine_of(std::unique_ptr<ModelFiles> files, const EngineOptions& options) {
  static const Log quiet(LogLevel::kOff, nullptr);
  return std::make_unique<Engine>(std::move(files), options, quiet);
}
inline std::unique_ptr<Engine> engine_of(const std::string& fixture, const EngineOptions& options = small_engine()) {
  return engine_of(open_model(hf_fixture(fixture)), options);
}

inline std::vector<GoldenCase> goldens(const std::string& fixture) {
  return read_golden(hf_fixture(fixture) / "golden.safetensors");
}

/// A model with a KV cache and threads of one's choice, every expert resident.
struct RigOptions {
  int threads = 2, block_tokens = 32, sequences = 1;
  KvType kv = KvType::kF32;
  Isa isa = default_isa();
  std::function<std::unique_ptr<Backend>(ThreadPool&)> make = {};  ///< instead of a CPU backend of that isa
};
class ModelRig {
 public:
  using Logits = Batch::Piece::Logits;

  explicit ModelRig(const std::string& fixture, const RigOptions& o = {})
      : files_(open_model(hf_fixture(fixture))),
        pool_(o.threads),
        backend_(o.make ? o.make(pool_) : make_cpu_backend(pool_, o.isa)) {
    stream_ = backend_->make_stream();
    model_.config = files_->config;
    model_.weights = load_weights(model_.config, files_->binding, files_->checkpoint.directory, *backend_, {});
    rope_ = std::make_unique<RopeTable>(model_.config.rope, model_.config.context_length);
    files_->store->choose_layouts([&](Format f) { return backend_->weight_layout(Op::kExperts, f); });
    experts_ = make_all_resident(model_.config, *files_->store, *backend_);
    KvOptions kv;
    kv.type = o.kv, kv.block_tokens = o.block_tokens, kv.max_sequences = o.sequences;
    kv.max_tokens = 256 * o.sequences, kv.max_step_tokens = 256;
    this->kv = std::make_unique<KvCache>(model_.config, *backend_, kv);
    state_ = std::make_unique<State>(model_.config, *backend_, 600, 600);
  }
  std::vector<float> step(const Batch& batch) {
    StepContext context{model_, *rope_, *backend_, *stream_, *experts_, *kv, *state_, observer};
    const auto logits = forward(context, batch);
    return {logits.begin(), logits.end()};
  }
  int vocab() const { return model_.config.vocab; }
  const Model& model() const { return model_; }
  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  StepObserver* observer = nullptr;

  /// Logits of every row of a prompt, in chunks.
  std::vector<float> logits(const std::vector<TokenId>& prompt, size_t chunk) {
    const SequenceId s = kv->open(int64_t(prompt.size()));
    std::vector<float> out;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      Batch batch;
      batch.pieces.push_back({s, std::span(prompt).subspan(at, std::min(chunk, prompt.size() - at)), Logits::kAll});
      const auto rows = step(batch);
      out.insert(out.end(), rows.begin(), rows.end());
    }
    kv->close(s);
    return out;
  }

 private:
  std::unique_ptr<ModelFiles> files_;
  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  Model model_;
  std::unique_ptr<RopeTable> rope_;
  std::unique_ptr<Experts> experts_;
  std::unique_ptr<State> state_;

 public:
  std::unique_ptr<KvCache> kv;
};

/// Bitwise, so that NaN equals itself and 0 differs from -0. Empty, or where they first differ.
inline std::string first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return fmt::format("{} and {} logits", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return fmt::format("logit {}: {} and {}", i, a[i], b[i]);
  return "";
}

}  // namespace ef::testing
