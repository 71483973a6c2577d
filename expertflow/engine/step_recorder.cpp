#include "expertflow/engine/step_recorder.h"

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/engine/sequence.h"

namespace ef {

void StepRecorder::on_step(std::span<const TokenId> tokens, std::span<const int32_t>,
                           std::span<const int32_t> positions) {
  recorded.rows = int64_t(tokens.size());
  recorded.tokens.assign(tokens.begin(), tokens.end());
  recorded.positions.assign(positions.begin(), positions.end());
}

void StepRecorder::on_residual(LayerId layer, bool routed, int64_t tokens, const float* residual) {
  RecordedRows::Layer& l = recorded.layers[size_t(layer)];
  (routed ? l.routed : l.input).assign(residual, residual + tokens * config_.hidden);
}

void StepRecorder::on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) {
  RecordedRows::Layer& l = recorded.layers[size_t(layer)];
  l.x.assign(x, x + routing.tokens * config_.hidden);
  l.logits.assign(logits, logits + routing.tokens * config_.router.experts);
  l.chosen.assign(routing.ids, routing.ids + routing.tokens * routing.top_k);
}

std::vector<TokenId> document_tokens(const Tokenizer& tokenizer, std::string_view text) {
  const std::string_view mark = "<|endoftext|>";
  const TokenId separator = tokenizer.find(std::string(mark)).value_or(0);
  constexpr int64_t kShortest = 200;
  std::vector<TokenId> ids;
  for (size_t at = 0; at <= text.size();) {
    size_t end = text.find(mark, at);
    if (end == std::string_view::npos) end = text.size();
    std::string_view document = text.substr(at, end - at);
    while (!document.empty() && document.front() == '\n') document.remove_prefix(1);
    while (!document.empty() && document.back() == '\n') document.remove_suffix(1);
    const auto characters = std::count_if(document.begin(), document.end(),
                                          [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    if (characters > kShortest) {
      const auto tokens = tokenizer.encode(document, {false, false});
      ids.insert(ids.end(), tokens.begin(), tokens.end());
      ids.push_back(separator);
    }
    at = end + mark.size();
  }
  return ids;
}

void record_windows(Engine& engine, std::span<const TokenId> tokens, int64_t window, int64_t most, bool from_start,
                    const std::function<bool(const RecordedRows&)>& sink) {
  const int64_t there = std::max<int64_t>(1, int64_t(tokens.size()) / window);
  const int64_t windows = std::clamp<int64_t>(most / window, 1, there);
  StepRecorder recorder(engine.config());
  engine.set_observer(&recorder);
  struct Reset {
    Engine& engine;
    ~Reset() { engine.set_observer(nullptr); }
  } reset{engine};
  for (int64_t w = 0; w < windows; ++w) {
    const int64_t begin = (from_start ? w : w * there / windows) * window;
    const int64_t end = std::min<int64_t>(begin + window, int64_t(tokens.size()));
    Sequence sequence(engine, end - begin);
    for (int64_t at = begin; at < end;) {
      const int64_t n = std::min<int64_t>(end - at, engine.options().ubatch);
      Batch batch;
      batch.pieces.push_back({sequence.id(), tokens.subspan(size_t(at), size_t(n)), Batch::Piece::Logits::kNone});
      engine.step(batch);
      if (!sink(recorder.recorded)) return;
      at += n;
    }
  }
}

namespace {

// The stream as a norm with weights of one leaves it.
void append_normalised(const Config& config, const float* x, std::vector<uint16_t>& out) {
  const int64_t n = config.hidden;
  double sum = 0, square = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]), square += double(x[i]) * double(x[i]);
  const double mean = config.norm == NormKind::kLayer ? sum / double(n) : 0.0;
  const double scale = 1 / std::sqrt(square / double(n) - mean * mean + double(config.norm_eps));
  for (int64_t i = 0; i < n; ++i) out.push_back(to_bf16(float((double(x[i]) - mean) * scale)));
}

void append(const Config& config, const RecordedRows& rows, StepSamples& s) {
  const int64_t hidden = config.hidden, experts = config.router.experts;
  for (int64_t r = 0; r < rows.rows; ++r) {
    s.begins.push_back(rows.positions[size_t(r)] == 0);
    for (size_t l = 0; l < config.layers.size(); ++l) {
      const RecordedRows::Layer& layer = rows.layers[l];
      append_normalised(config, &layer.input[size_t(r * hidden)], s.input);
      const bool sparse = config.layers[l].sparse;
      append_normalised(config, sparse ? &layer.routed[size_t(r * hidden)] : &layer.input[size_t(r * hidden)],
                        s.routed);
      if (sparse)
        s.logits.insert(s.logits.end(), &layer.logits[size_t(r * experts)],
                        &layer.logits[size_t(r * experts)] + experts);
      else
        s.logits.insert(s.logits.end(), size_t(experts), 0.f);
    }
    ++s.count;
  }
}

}  // namespace

StepSamples record_samples(Engine& engine, const std::vector<NamedText>& texts, int64_t most,
                           const std::function<void(uint64_t, uint64_t)>& progress) {
  const Config& c = engine.config();
  StepSamples s;
  s.layers = int(c.layers.size()), s.hidden = c.hidden, s.experts = c.router.experts, s.top_k = c.router.top_k;
  const int64_t window = std::min<int64_t>(1024, engine.context_length());
  const int64_t each = most / int64_t(texts.size());
  uint64_t total = 0;
  for (const NamedText& text : texts) total += uint64_t(std::min<int64_t>(each, int64_t(text.tokens.size())));
  s.input.reserve(total * size_t(s.layers) * size_t(s.hidden));
  s.routed.reserve(total * size_t(s.layers) * size_t(s.hidden));
  s.logits.reserve(total * size_t(s.layers) * size_t(s.experts));
  for (const NamedText& text : texts)
    record_windows(engine, text.tokens, window, each, false, [&](const RecordedRows& rows) {
      append(c, rows, s);
      progress(std::min<uint64_t>(s.count, total), total);
      return true;
    });
  return s;
}

}  // namespace ef
