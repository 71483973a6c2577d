#include "expertflow/engine/trace_recorder.h"

#include <algorithm>
#include <cmath>

#include "expertflow/engine/fingerprint.h"
#include "expertflow/predict/router_scores.h"
#include "expertflow/quant/scalars.h"

namespace ef {

namespace {

uint64_t nanoseconds(double seconds) { return uint64_t(std::max(0., std::round(seconds * 1e9))); }

}  // namespace

TraceHeader trace_header(const ModelFiles& files, const std::string& name, bool hidden_states) {
  const Config& c = files.config;
  TraceHeader header;
  header.model = name;
  header.fingerprint = model_fingerprint(files);
  header.hidden = c.hidden;
  header.top_k = c.router.top_k;
  header.candidates = std::min(2 * c.router.top_k, c.router.experts);
  header.hidden_states = hidden_states;
  for (LayerId l = 0; size_t(l) < c.layers.size(); ++l) {
    const bool sparse = files.store->has_layer(l);
    header.layers.push_back({sparse ? files.store->experts(l) : 0, sparse ? files.store->slot_bytes(l) : 0});
  }
  return header;
}

TraceRecorder::TraceRecorder(const std::filesystem::path& path, const ModelFiles& files, const std::string& name,
                             bool hidden_states, const Clock& clock, std::function<double()> stall_seconds)
    : config_(files.config),
      clock_(clock),
      stall_seconds_(std::move(stall_seconds)),
      writer_(path, trace_header(files, name, hidden_states)) {}

void TraceRecorder::on_step(std::span<const TokenId> tokens, std::span<const int32_t> sequences,
                            std::span<const int32_t> positions) {
  const uint64_t number = step_.step + 1;
  step_ = {};
  step_.step = number;
  step_.layers.resize(config_.layers.size());
  layer_ = -1;
  bool prefill = false, decode = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto [it, added] = request_of_.try_emplace(sequences[i], requests_);
    if (added || positions[i] == 0) it->second = requests_++;
    step_.rows.push_back({it->second, tokens[i], positions[i]});
    const bool alone =
        (i == 0 || sequences[i - 1] != sequences[i]) && (i + 1 == tokens.size() || sequences[i + 1] != sequences[i]);
    (alone && positions[i] > 0 ? decode : prefill) = true;
  }
  step_.phase = prefill && decode ? TracePhase::kMixed : decode ? TracePhase::kDecode : TracePhase::kPrefill;
}

void TraceRecorder::on_layer(LayerId layer) {
  end_layer();
  layer_ = layer;
  layer_begin_ = clock_.now();
  layer_stall_ = stall_seconds_();
}

void TraceRecorder::end_layer() {
  if (layer_ < 0) return;
  const double stall = stall_seconds_() - layer_stall_;
  TraceLayer& layer = step_.layers[size_t(layer_)];
  layer.stall_ns = nanoseconds(stall);
  layer.compute_ns = nanoseconds(seconds(clock_.now() - layer_begin_) - stall);
}

void TraceRecorder::on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) {
  TraceLayer& out = step_.layers[size_t(layer)];
  const size_t rows = size_t(routing.tokens), experts = size_t(config_.router.experts);
  probabilities_.resize(rows * experts);
  for (size_t r = 0; r < rows; ++r)
    router_probabilities(config_.router, logits + r * experts, &probabilities_[r * experts]);
  set_candidates(writer_.header(), probabilities_, routing.tokens, out);
  out.chosen.assign(routing.ids, routing.ids + rows * size_t(routing.top_k));
  if (!writer_.header().hidden_states) return;
  out.x.resize(rows * size_t(config_.hidden));
  for (size_t i = 0; i < out.x.size(); ++i) out.x[i] = f32_to_f16(x[i]);
}

void TraceRecorder::on_step_end() {
  end_layer();
  layer_ = -1;
  writer_.write(step_);
}

}  // namespace ef
