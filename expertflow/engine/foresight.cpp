#include "expertflow/engine/foresight.h"

#include <algorithm>
#include <limits>
#include <map>

#include "expertflow/base/errors.h"

namespace ef {

namespace {

// Of its k likeliest a layer's prediction says so much on average, or it is worth another look just before attention.
constexpr double kCertain = 0.75;

}  // namespace

Foresight::Foresight(const Config& config, const State& state, Predictor& predictor, Stream& stream, ExpertCache& cache,
                     CopyPipeline& pipeline, const CachedExperts& experts, const Clock& clock,
                     const ForesightOptions& options)
    : config_(config),
      state_(state),
      predictor_(predictor),
      stream_(stream),
      cache_(cache),
      pipeline_(pipeline),
      experts_(experts),
      clock_(clock),
      options_(options),
      governor_(options.governor),
      controller_(options.controller) {
  predicted_.resize(config.layers.size());
  for (const auto& layer : config.layers)
    sparse_until_.push_back((sparse_until_.empty() ? 0 : sparse_until_.back()) + (layer.sparse ? 1 : 0));
  probabilities_.resize(size_t(options.governor.most_rows) * size_t(config.router.experts));
  stats_.predictor = predictor.name();
}

LinkView Foresight::link() const {
  const CopyStats copies = pipeline_.stats();
  return {copies.bytes_per_second, copies.demand_busy_seconds, copies.prefetch_bytes};
}

void Foresight::on_step(std::span<const TokenId> tokens, std::span<const int32_t> sequences,
                        std::span<const int32_t> positions) {
  rows_ = int64_t(tokens.size());
  routed_ = -1;
  for (auto& predictions : predicted_) predictions.clear();
  ahead_.clear();
  governor_.set_budget_share(regimes_.begin_step(rows_).byte_share);
  governor_.begin_step(clock_.now(), rows_);
  step_stall_ = experts_.stats().stall_seconds;
  predictor_.begin_step({tokens, sequences, positions});
}

void Foresight::on_layer(LayerId layer) {
  StepView view;
  view.point = StepPoint::kLayerInput;
  view.layer = layer;
  view.rows = rows_;
  view.residual = state_.x;
  predictor_.observe(view);
  if (layer == 0 && rows_ > 1 && looked_at())
    controller_.on_diversity(pairwise_distance({state_.x, size_t(rows_ * config_.hidden)}, rows_));
  if (!governor_.ahead() || !config_.layers[size_t(layer)].sparse) return;
  const auto& known = predicted_[size_t(layer)];
  if (!known.empty() && known.back().certainty >= kCertain) return;
  if (!predictor_.covers(StepPoint::kLayerInput, layer, layer)) return;
  fresh_.clear();
  // Of a token that has just been chosen its first layers are guessed at once: the link has been idle since the last
  // one.
  LayerId last = layer;
  while (layer == 0 && size_t(last) + 1 < config_.layers.size() && steps_to(-1, last + 1) <= horizon() &&
         predictor_.covers(StepPoint::kLayerInput, 0, last + 1))
    ++last;
  predict(view, layer, last);
  issue(layer);
}

void Foresight::on_event(LayerId layer, std::span<const ExpertId> wanted) {
  note_arrivals();
  tell_controller(layer, wanted);
  score(layer, wanted);
  governor_.on_event(layer, wanted, link(), clock_.now());
  judge_ahead(layer, wanted);
  routed_ = layer;
}

// Whatever has come since the last event came while that one's layer ran.
void Foresight::note_arrivals() {
  for (Ahead& ahead : ahead_)
    if (ahead.lead == 0 && cache_.page_of(ahead.key) >= 0) ahead.lead = steps_to(routed_, ahead.key.layer);
}

// Unused copies were looked too far ahead for, and so were all of an event if even the last of them came earlier than
// the formula says that the link needs: the layer that feedback has added is then of no use. (No copy can come earlier
// than the distance at which it was issued.)
void Foresight::judge_ahead(LayerId layer, std::span<const ExpertId> wanted) {
  int used = 0, unused = 0, lead = std::numeric_limits<int>::max();
  std::erase_if(ahead_, [&](const Ahead& ahead) {
    if (ahead.key.layer != layer) return false;
    const bool right = std::binary_search(wanted.begin(), wanted.end(), ahead.key.expert);
    ++(right ? used : unused);
    if (right) lead = std::min(lead, ahead.lead);
    return true;
  });
  for (; used > 0; --used) controller_.on_prefetch(lead <= controller_.formula());
  for (; unused > 0; --unused) controller_.on_prefetch(false);
}

// What the distance goes by: of this layer's event, and of the compute since the one before.
void Foresight::tell_controller(LayerId layer, std::span<const ExpertId> wanted) {
  if (!looked_at()) return;
  const Duration now = clock_.now();
  const double stall = experts_.stats().stall_seconds;
  int near = 0;
  for (const ExpertId expert : wanted) near += cache_.page_of({layer, expert}) >= 0;
  controller_.on_hits(uint64_t(near), wanted.size());
  if (routed_ >= 0) {
    const auto& predictions = predicted_[size_t(layer)];
    // By the first look: what the later ones miss is less what has been copied since.
    const double missing = predictions.empty() ? double(wanted.size()) - near : predictions.front().missing;
    controller_.on_layer(missing, seconds(now - event_time_) - (stall - event_stall_));
    if (stall > event_stall_) controller_.on_stall();
  }
  event_time_ = now;
  event_stall_ = stall;
}

void Foresight::look(LayerId layer, const RoutingView& host) {
  StepView view;
  view.layer = layer;
  view.rows = rows_;
  view.residual = state_.x;
  view.x = state_.normed;
  view.logits = state_.router_logits;
  view.routing = {rows_, host.top_k, state_.router_ids, state_.router_weights};
  view.chosen = {host.ids, size_t(rows_ * host.top_k)};
  predictor_.observe(view);
  if (!governor_.ahead()) return;
  fresh_.clear();
  const auto layers = LayerId(config_.layers.size());
  for (LayerId first = layer + 1; first < layers && steps_to(layer, first) <= horizon(); ++first) {
    LayerId end = first;  // a run of MoE layers
    while (end < layers && steps_to(layer, end) <= horizon() && predictor_.covers(StepPoint::kRouted, layer, end))
      ++end;
    if (end > first) predict(view, first, end - 1);
    first = end;  // a dense layer, or one that nothing is said about
  }
  issue(layer);
}

// MoE layers from one, or from the beginning (-1), to another.
int Foresight::steps_to(LayerId from, LayerId target) const {
  return sparse_until_[size_t(target)] - (from < 0 ? 0 : sparse_until_[size_t(from)]);
}

// Asks about layers first..last, all covered, and remembers what is said.
void Foresight::predict(const StepView& view, LayerId first, LayerId last) {
  const Duration begin = clock_.now();
  predictor_.queue(view, first, last, stream_);
  stream_.synchronize();
  const int64_t experts = config_.router.experts;
  for (LayerId target = first; target <= last; ++target) {
    const std::span probabilities(probabilities_.data(), size_t(rows_ * experts));
    predictor_.finish(target, probabilities.data());
    CandidateRule rule = options_.candidates.of(target);  // of a row
    rule.least *= int(rows_), rule.most *= int(rows_);
    const auto ranked = ranking_.rank(target, probabilities, rows_, rule);
    Prediction prediction;
    prediction.distance = std::max(1, steps_to(routed_, target));
    prediction.ranked.assign(ranked.begin(), ranked.end());
    const size_t likeliest = std::min(ranked.size(), size_t(config_.router.top_k));
    for (size_t i = 0; i < likeliest; ++i) prediction.certainty += double(ranked[i].probability) / double(likeliest);
    for (const Candidate& candidate : ranked) {
      fresh_.push_back({candidate, prediction.distance});
      prediction.missing += cache_.look(candidate.key).state == ExpertState::kAbsent;
    }
    predicted_[size_t(target)].push_back(std::move(prediction));
  }
  stats_.predict_seconds += seconds(clock_.now() - begin);
}

// Has the worthwhile of what has just been said copied.
void Foresight::issue(LayerId current) {
  if (fresh_.empty()) return;
  std::map<LayerId, int> taken;
  std::vector<std::pair<ExpertKey, float>> likely;
  std::vector<PrefetchCandidate> candidates;
  for (const auto& [candidate, distance] : fresh_) {
    likely.emplace_back(candidate.key, candidate.probability);
    if (cache_.look(candidate.key).state != ExpertState::kAbsent) continue;
    int& of_layer = taken[candidate.key.layer];
    if (!regimes_.admits(candidate.probability, of_layer, config_.router.experts)) continue;
    ++of_layer;
    candidates.push_back(
        {candidate.key, candidate.probability, distance, cache_.geometry().footprint(candidate.key.layer)});
  }
  cache_.predict(likely);
  const PrefetchPlan plan = governor_.plan(candidates, likely, cache_.reserved_bytes(), link());
  if (!plan.cancel.empty()) {
    const auto cancelled = [&](ExpertKey key) {
      return std::find(plan.cancel.begin(), plan.cancel.end(), key) != plan.cancel.end();
    };
    pipeline_.cancel_prefetches(cancelled);
    std::erase_if(ahead_, [&](const Ahead& ahead) { return cancelled(ahead.key); });
  }
  std::vector<Copy> copies;
  for (const PrefetchCandidate& candidate : plan.issue) {
    if (const auto grant = cache_.reserve(candidate.key, current)) {
      copies.push_back({candidate.key, grant->slot});
      ahead_.push_back({candidate.key});
    } else {
      governor_.drop(candidate.key);
    }
  }
  pipeline_.submit(copies, CopyPriority::kPrefetch);
}

// Before anything of the event is placed: what was predicted for it, against what it asks for.
void Foresight::score(LayerId layer, std::span<const ExpertId> wanted) {
  auto& predictions = predicted_[size_t(layer)];
  for (const Prediction& prediction : predictions) {
    PredictionCounts counts;
    const auto is_wanted = [&](ExpertId id) { return std::binary_search(wanted.begin(), wanted.end(), id); };
    counts.events = 1;
    counts.routed = wanted.size();
    counts.predicted = prediction.ranked.size();
    for (size_t i = 0; i < prediction.ranked.size(); ++i) {
      const ExpertKey key = prediction.ranked[i].key;
      if (!is_wanted(key.expert)) continue;
      ++counts.named;
      counts.named_first += i < wanted.size();
      const bool resident = cache_.page_of(key) >= 0;
      counts.ready += resident;
      counts.fetched += resident ? 1 : pipeline_.progress(key);
    }
    counts.exact = counts.named_first == wanted.size();
    counts.half = 2 * counts.named_first >= wanted.size();
    const auto at = size_t(prediction.distance - 1);
    if (stats_.by_distance.size() <= at) stats_.by_distance.resize(at + 1);
    stats_.by_distance[at] += counts;
    if (&prediction == &predictions.back()) stats_.prediction += counts;
  }
  predictions.clear();
}

void Foresight::end_step(bool failed) {
  if (failed) return;
  governor_.end_step(clock_.now(), experts_.stats().stall_seconds - step_stall_);
  const CopyStats copies = pipeline_.stats();
  const double bytes = double(copies.bytes_read + copies.bytes_cancelled);
  controller_.on_copies(bytes - copied_bytes_, copies.busy_seconds - copied_seconds_);
  copied_bytes_ = bytes, copied_seconds_ = copies.busy_seconds;
  if (looked_at()) controller_.end_step(rows_);
}

ForesightStats Foresight::stats() const {
  ForesightStats stats = stats_;
  stats.adaptive = options_.horizon == 0;
  stats.horizon = horizon();
  stats.controller = controller_.stats();
  // What the controller would have done with a distance that was given is no change.
  if (!stats.adaptive) stats.controller.distance = stats.horizon, stats.controller.changes.clear();
  stats.governor = governor_.stats();
  stats.regimes = regimes_.stats();
  return stats;
}

}  // namespace ef
