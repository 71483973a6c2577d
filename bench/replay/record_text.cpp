// Writes the routing trace of a text: bench_record_text MODEL TEXT OUT [windows] [length] [batch]. Windows of `length`
// tokens are fed each on its own, in chunks; the trace has a step for each token, as decoding would have had (on a CPU
// a row's routing does not depend on its chunk), or for each position of `batch` windows, as if these were decoded side
// by side. Times are 0: replays set their own. Hidden states are recorded if OUT ends in ".hidden.trace".
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/engine/text_model.h"
#include "expertflow/quant/scalars.h"
#include "expertflow/trace/trace_file.h"

namespace {

using namespace ef;

// Keeps the layers of one chunk.
class ChunkRouting final : public StepObserver {
 public:
  ChunkRouting(const TraceHeader& header, const Config& config) : header_(header), config_(config) {
    layers_.resize(header.layers.size());
  }
  void on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) override {
    TraceLayer& to = layers_[size_t(layer)];
    const size_t experts = size_t(config_.router.experts), rows = size_t(routing.tokens);
    std::vector<float> p(logits, logits + rows * experts);
    for (size_t row = 0; row < rows; ++row) softmax(std::span(p).subspan(row * experts, experts));
    set_candidates(header_, p, routing.tokens, to);
    to.chosen.assign(routing.ids, routing.ids + rows * size_t(routing.top_k));
    if (!header_.hidden_states) return;
    to.x.resize(rows * size_t(config_.hidden));
    for (size_t i = 0; i < to.x.size(); ++i) to.x[i] = f32_to_f16(x[i]);
  }
  // One row as a step of its own.
  TraceStep row(size_t row, const TraceRow& token, uint64_t step) const {
    TraceStep out;
    out.step = step;
    out.rows = {token};
    for (const TraceLayer& layer : layers_) {
      TraceLayer one;
      const auto cut = [&](const std::vector<uint16_t>& from, int width) {
        if (from.empty()) return std::vector<uint16_t>();
        const auto begin = from.begin() + std::ptrdiff_t(row) * width;
        return std::vector<uint16_t>(begin, begin + width);
      };
      one.candidates = cut(layer.candidates, header_.candidates);
      one.probabilities = cut(layer.probabilities, header_.candidates);
      one.chosen = cut(layer.chosen, header_.top_k);
      one.x = cut(layer.x, header_.hidden);
      out.layers.push_back(std::move(one));
    }
    return out;
  }

 private:
  static void softmax(std::span<float> row) {
    const float most = *std::max_element(row.begin(), row.end());
    float sum = 0;
    for (float& v : row) sum += v = std::exp(v - most);
    for (float& v : row) v /= sum;
  }
  const TraceHeader& header_;
  const Config& config_;
  std::vector<TraceLayer> layers_;
};

// The rows of `step` behind those of `to`.
void append(const TraceStep& step, TraceStep& to) {
  to.rows.insert(to.rows.end(), step.rows.begin(), step.rows.end());
  for (size_t i = 0; i < step.layers.size(); ++i) {
    const auto put = [](const std::vector<uint16_t>& from, std::vector<uint16_t>& all) {
      all.insert(all.end(), from.begin(), from.end());
    };
    put(step.layers[i].candidates, to.layers[i].candidates);
    put(step.layers[i].probabilities, to.layers[i].probabilities);
    put(step.layers[i].chosen, to.layers[i].chosen);
    put(step.layers[i].x, to.layers[i].x);
  }
}

TraceHeader header_of(const ModelFiles& files, bool hidden_states) {
  const Config& config = files.config;
  TraceHeader header;
  header.model = files.checkpoint.path.filename().string();
  header.hidden = int(config.hidden);
  header.top_k = config.router.top_k;
  header.candidates = std::min(2 * config.router.top_k, config.router.experts);
  header.hidden_states = hidden_states;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const int experts = config.layers[i].sparse ? config.router.experts : 0;
    header.layers.push_back({experts, experts == 0 ? 0 : files.store->layout(LayerId(i)).bytes});
  }
  return header;
}

int64_t count_of(const char* text) {
  int64_t value = 0;
  const std::string_view all = text;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  EF_CHECK(error == std::errc() && end == all.data() + all.size() && value > 0, ConfigError,
           "expected a number above 0, found \"{}\"", text);
  return value;
}

}  // namespace

int main(int argc, char** argv) try {
  EF_CHECK(argc >= 4 && argc <= 7, ConfigError, "usage: bench_record_text MODEL TEXT OUT [windows] [length] [batch]");
  const int64_t most = argc > 4 ? count_of(argv[4]) : 12, length = argc > 5 ? count_of(argv[5]) : 1024;
  const int64_t batch = argc > 6 ? count_of(argv[6]) : 1;
  const std::string out = argv[3];
  static const Log log;
  auto files = open_model(argv[1]);
  const auto tokenizer = load_tokenizer(files->checkpoint);
  EF_CHECK(tokenizer.has_value(), ModelError, "{}: expected a tokenizer, found none", argv[1]);
  const auto tokens = tokenizer->encode(read_text_file(argv[2]));
  const TraceHeader header = header_of(*files, out.ends_with(".hidden.trace"));
  EngineOptions options;
  options.expert_memory = "100%";
  options.ctx_size = length;
  Engine engine(std::move(files), options, log);
  TraceWriter writer(out, header);
  ChunkRouting routing(header, engine.config());
  engine.set_observer(&routing);
  const int64_t windows = std::min(most, int64_t(tokens.size()) / length);
  EF_CHECK(windows > 0, ConfigError, "{}: expected {} tokens or more, found {}", argv[2], length, tokens.size());
  std::vector<TraceStep> steps;  // of the windows that stand side by side
  for (int64_t window = 0; window < windows; ++window) {
    Sequence sequence(engine, length);
    for (int64_t at = 0; at < length;) {
      const int64_t rows = std::min<int64_t>(options.ubatch, length - at);
      const auto chunk = std::span(tokens).subspan(size_t(window * length + at), size_t(rows));
      sequence.feed_silently(chunk);
      for (int64_t row = 0; row < rows; ++row) {
        const auto place = size_t(at + row);
        TraceStep step = routing.row(size_t(row), {uint64_t(window), chunk[size_t(row)], int32_t(place)}, 0);
        if (place == steps.size())
          steps.push_back(std::move(step));
        else
          append(step, steps[place]);
      }
      at += rows;
    }
    if ((window + 1) % batch != 0 && window + 1 < windows) continue;
    for (TraceStep& step : steps) {
      step.step = writer.steps() + 1;
      writer.write(step);
    }
    steps.clear();
  }
  writer.close();
  fmt::print("{}: {} tokens, {} bytes\n", out, writer.rows(), writer.bytes());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_record_text: {}\n", error.what());
  return 1;
}
