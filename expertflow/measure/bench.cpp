#include "expertflow/measure/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "expertflow/base/errors.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/transfer/expert_reader.h"

namespace ef {

namespace {

// Which experts each layer of each step asked for.
class RoutingRecorder final : public StepObserver {
 public:
  explicit RoutingRecorder(int experts) : seen_(size_t(std::max(0, experts))) {}
  void on_routing(LayerId layer, const float*, const float*, const RoutingView& routing) override {
    LayerEvent event{layer, {}};
    for (int64_t i = 0; i < routing.tokens * routing.top_k; ++i) {
      const int32_t id = routing.ids[i];
      if (!seen_[size_t(id)]) event.experts.push_back(id);
      seen_[size_t(id)] = true;
    }
    for (const ExpertId id : event.experts) seen_[size_t(id)] = false;
    events.push_back(std::move(event));
  }
  std::vector<LayerEvent> events;

 private:
  std::vector<bool> seen_;
};

// The sequences of one repetition, and their tokens.
class Sequences {
 public:
  Sequences(Engine& engine, const BenchTest& test, const TokenStream& stream, uint64_t number)
      : engine_(engine), test_(test), top_(std::min(engine.most_top(), kTop)) {
    const uint64_t length = uint64_t(test.length());
    for (uint64_t s = 0; s < uint64_t(test.sequences); ++s) {
      tokens_.push_back(stream.slice((number * uint64_t(test.sequences) + s) * length, length));
      sequences_.push_back(std::make_unique<Sequence>(engine, test.length()));
    }
  }
  void feed_context() { feed(0, test_.depth); }
  void feed_prompts() { feed(test_.depth, test_.prompt); }
  /// The i-th token after the prompt, of all.
  void decode(int i) {
    Batch batch;
    for (size_t s = 0; s < sequences_.size(); ++s)
      batch.pieces.push_back({sequences_[s]->id(), std::span(&tokens_[s][size_t(test_.depth + test_.prompt + i)], 1)});
    if (top_ > 0)
      engine_.step_top(batch, top_);
    else
      engine_.step(batch);
  }

 private:
  // What run looks at unless it is asked otherwise, where the backend finds the largest logits.
  static constexpr int kTop = 40;
  void feed(int begin, int count) {
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const auto tokens = std::span<const TokenId>(tokens_[s]).subspan(size_t(begin), size_t(count));
      if (top_ > 0)
        sequences_[s]->feed_top(tokens, top_);
      else
        sequences_[s]->feed(tokens);
    }
  }
  Engine& engine_;
  const BenchTest& test_;
  const int top_;
  std::vector<std::vector<TokenId>> tokens_;  // [sequences][length]
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

class Runner {
 public:
  Runner(Engine& engine, const BenchTest& test, const TokenStream& stream)
      : engine_(engine),
        test_(test),
        stream_(stream),
        work_(work_of(engine.files())),
        type_(parse_kv_type(engine.options().cache_type_k)),
        recorder_(engine.config().router.experts) {}

  /// Experts are counted while the clock runs if `observed`, else counted_bytes is believed.
  BenchSample repetition(uint64_t number, bool observed, uint64_t counted_bytes = 0) {
    Sequences sequences(engine_, test_, stream_, number);
    sequences.feed_context();
    const size_t first_event = recorder_.events.size();
    const ExpertStats before = engine_.expert_stats();
    if (observed) engine_.set_observer(&recorder_);
    BenchSample sample;
    const auto start = std::chrono::steady_clock::now();
    sequences.feed_prompts();
    const auto middle = std::chrono::steady_clock::now();
    for (int i = 0; i < test_.gen; ++i) sequences.decode(i);
    const auto end = std::chrono::steady_clock::now();
    engine_.set_observer(nullptr);
    sample.prompt_seconds = std::chrono::duration<double>(middle - start).count();
    sample.decode_seconds = std::chrono::duration<double>(end - middle).count();
    const ExpertStats after = engine_.expert_stats();
    sample.hits = after.hits - before.hits, sample.misses = after.misses - before.misses;
    sample.bytes_read = after.bytes_read - before.bytes_read;
    sample.evictions = after.evictions - before.evictions;
    sample.stall_seconds = after.stall_seconds - before.stall_seconds;
    sample.weight_bytes = dense_bytes() + (observed ? expert_bytes_from(first_event) : counted_bytes);
    return sample;
  }
  uint64_t count_experts(uint64_t number) { return repetition(number, true).weight_bytes - dense_bytes(); }

  // Without routed experts: every step reads the resident weights and what it attends to, once.
  uint64_t dense_bytes() const {
    const uint64_t sequences = uint64_t(test_.sequences);
    uint64_t bytes = uint64_t(test_.tokens()) * work_.embedding_row;
    const int64_t chunk = engine_.options().ubatch;
    for (int64_t at = 0; at < test_.prompt; at += chunk) {
      const int64_t end = std::min<int64_t>(at + chunk, test_.prompt);
      bytes += sequences * (work_.resident_bytes + (end == test_.prompt ? work_.head_bytes : 0) +
                            kv_bytes_read(engine_.config(), type_, test_.depth + end - 1));
    }
    for (int i = 0; i < test_.gen; ++i)
      bytes += work_.resident_bytes + work_.head_bytes +
               sequences * kv_bytes_read(engine_.config(), type_, int64_t(test_.depth) + test_.prompt + i);
    return bytes;
  }

  BenchProfile profile(const BenchResult& timed) {
    Sequences sequences(engine_, test_, stream_, 1);
    BenchProfile out;
    const auto step = [&](bool wanted, int steps, const auto& run) {
      if (wanted) engine_.stream().begin_profile();
      run();
      if (wanted) add(engine_.stream().end_profile(), out.work), out.steps += steps;
    };
    sequences.feed_context();
    const int64_t chunk = engine_.options().ubatch;
    const int chunks = test_.sequences * int((test_.prompt + chunk - 1) / chunk);
    step(test_.gen == 0, chunks, [&] { sequences.feed_prompts(); });
    // Some, from the first to the last: what a step takes grows with the context.
    constexpr int kSteps = 16;
    const int every = std::max(1, test_.gen / kSteps);
    for (int i = 0; i < test_.gen; ++i) step(i % every == 0, 1, [&] { sequences.decode(i); });
    std::sort(out.work.entries.begin(), out.work.entries.end(),
              [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    out.step_seconds = test_.gen > 0 ? timed.mean(&BenchSample::decode_seconds) / test_.gen
                                     : timed.mean(&BenchSample::prompt_seconds) / chunks;
    return out;
  }

  Operations operations() const {
    Operations all = double(test_.tokens()) * work_.token;
    all += double(test_.sequences * (test_.gen + (test_.prompt > 0 ? 1 : 0))) * work_.head;
    for (int i = test_.depth; i < test_.length(); ++i)
      all += double(test_.sequences) * attention_operations(engine_.config(), i);
    return all;
  }

  double clairvoyant_bytes(int repetitions) const {
    const CacheGeometry geometry = geometry_of(*engine_.files().store, int(engine_.config().layers.size()));
    const auto result = clairvoyant_misses(geometry, recorder_.events, engine_.plan().expert_budget, true);
    return double(result.bytes_missed) / repetitions;
  }
  void forget_events() { recorder_.events.clear(); }

 private:
  static void add(const StreamProfile& part, StreamProfile& all) {
    for (const StreamProfile::Entry& entry : part.entries) {
      const auto it = std::find_if(all.entries.begin(), all.entries.end(),
                                   [&](const auto& known) { return known.name == entry.name; });
      if (it == all.entries.end())
        all.entries.push_back(entry);
      else
        it->count += entry.count, it->seconds += entry.seconds;
    }
    all.added_seconds = part.added_seconds, all.empty_seconds = part.empty_seconds;
  }

  uint64_t expert_bytes_from(size_t first_event) const {
    uint64_t bytes = 0;
    for (size_t i = first_event; i < recorder_.events.size(); ++i) {
      const LayerEvent& event = recorder_.events[i];
      bytes += event.experts.size() * expert_bytes(engine_.files().store->layout(event.layer));
    }
    return bytes;
  }

  Engine& engine_;
  const BenchTest& test_;
  const TokenStream& stream_;
  const ModelWork work_;
  const KvType type_;
  RoutingRecorder recorder_;
};

// splitmix64: any index without the ones before it.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::string BenchTest::name() const {
  std::string name;
  if (prompt > 0) name = fmt::format("pp{}", prompt);
  if (gen > 0) name += fmt::format("{}tg{}", name.empty() ? "" : "+", gen);
  if (depth > 0) name += fmt::format(" @ d{}", depth);
  if (sequences > 1) name += fmt::format(" x {}", sequences);
  return name;
}

double BenchProfile::kernel_seconds() const {
  double sum = 0;
  for (const StreamProfile::Entry& entry : work.entries) sum += entry.copy ? 0 : entry.seconds;
  return sum / steps;
}
uint64_t BenchProfile::kernels() const {
  uint64_t sum = 0;
  for (const StreamProfile::Entry& entry : work.entries) sum += entry.copy ? 0 : entry.count;
  return sum;
}

double BenchResult::mean(double BenchSample::*member) const {
  double sum = 0;
  for (const BenchSample& s : samples) sum += s.*member;
  return sum / double(samples.size());
}
double BenchResult::mean(uint64_t BenchSample::*member) const {
  double sum = 0;
  for (const BenchSample& s : samples) sum += double(s.*member);
  return sum / double(samples.size());
}

std::vector<double> BenchResult::rates() const {
  std::vector<double> rates;
  for (const BenchSample& s : samples) rates.push_back(double(test.tokens()) / s.seconds());
  return rates;
}

Spread spread_of(std::vector<double> values) {
  Spread s;
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  s.mean = std::accumulate(values.begin(), values.end(), 0.0) / double(n);
  double squares = 0;
  for (const double v : values) squares += (v - s.mean) * (v - s.mean);
  s.deviation = n > 1 ? std::sqrt(squares / double(n - 1)) : 0;
  s.median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  s.least = values.front(), s.most = values.back();
  return s;
}

double Bounds::seconds() const { return std::max({memory, compute, disk}); }
const char* Bounds::by() const {
  if (seconds() == 0) return "none";
  return seconds() == memory ? "memory" : seconds() == compute ? "compute" : "disk";
}
double Bounds::clairvoyant_seconds() const { return std::max({memory, compute, clairvoyant}); }

Bounds bounds_of(const BenchResult& result, const Peaks& peaks) {
  Bounds bounds;
  const auto time = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  bounds.memory = time(result.mean(&BenchSample::weight_bytes), peaks.memory.bytes_per_second);
  bounds.compute = seconds_at_peak(result.operations, peaks.compute);
  bounds.disk = time(result.mean(&BenchSample::bytes_read), peaks.disk.bytes_per_second);
  bounds.clairvoyant = time(result.clairvoyant_bytes, peaks.disk.bytes_per_second);
  return bounds;
}

TokenId TokenStream::at(uint64_t index) const {
  if (!tokens_.empty()) return tokens_[size_t(index % tokens_.size())];
  return TokenId(mix(seed_ * 0x2545f4914f6cdd1du + index) % uint64_t(vocab_));
}

std::vector<TokenId> TokenStream::slice(uint64_t begin, uint64_t count) const {
  std::vector<TokenId> out;
  for (uint64_t i = 0; i < count; ++i) out.push_back(at(begin + i));
  return out;
}

BenchResult run_bench(Engine& engine, const BenchTest& test, const TokenStream& stream, const BenchOptions& options) {
  EF_CHECK(test.prompt >= 0 && test.gen >= 0 && test.depth >= 0 && test.sequences >= 1 && test.tokens() > 0,
           ConfigError,
           "bench: expected a prompt or tokens to generate in a sequence or more, found {} and {} at depth {} in {}",
           test.prompt, test.gen, test.depth, test.sequences);
  EF_CHECK(options.repetitions >= 1, ConfigError, "repetitions: expected at least 1, found {}", options.repetitions);
  if (options.profile) {
    EF_CHECK(engine.stream().begin_profile(), ConfigError,
             "profile: expected a device that times kernels, found {}; use --device cuda", engine.backend().name());
    engine.stream().end_profile();
  }
  Runner runner(engine, test, stream);
  const bool observed = engine.backend().memory_is_host();
  BenchResult result;
  result.test = test;
  if (options.warm_up) {
    const BenchSample first = runner.repetition(0, observed);
    if (options.cold && observed) result.cold = first;
  }
  runner.forget_events();
  engine.set_recorder(options.recorder);
  const uint64_t counted = observed ? 0 : runner.count_experts(1);
  for (int i = 1; i <= options.repetitions; ++i)
    result.samples.push_back(runner.repetition(uint64_t(i), observed, counted));
  engine.set_recorder(nullptr);
  result.metrics = engine.expert_metrics();
  result.stats = engine.expert_stats();
  result.operations = runner.operations();
  if (observed) result.clairvoyant_bytes = runner.clairvoyant_bytes(options.repetitions);
  if (options.profile) result.profile = runner.profile(result);
  return result;
}

}  // namespace ef
