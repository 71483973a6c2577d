#include "expertflow/replay/replay.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_map>

#include "expertflow/base/errors.h"
#include "expertflow/cache/expert_cache.h"
#include "expertflow/predict/regime.h"
#include "expertflow/quant/scalars.h"

namespace ef {
namespace {

// Addresses for slots that nobody touches.
class AddressRange {
 public:
  explicit AddressRange(uint64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EF_CHECK(data_ != MAP_FAILED, ConfigError, "budget: no addresses for {} bytes", bytes);
  }
  ~AddressRange() { munmap(data_, bytes_); }
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), size_t(bytes_)}; }

 private:
  void* data_;
  uint64_t bytes_;
};

// The policy with somebody who notes what leaves.
class Watched final : public EvictionPolicy {
 public:
  Watched(std::unique_ptr<EvictionPolicy> policy, std::function<void(ExpertKey)> evicted)
      : policy_(std::move(policy)), evicted_(std::move(evicted)) {}
  std::string_view name() const override { return policy_->name(); }
  void on_access(const AccessEvent& event) override { policy_->on_access(event); }
  void on_insert(ExpertKey key) override { policy_->on_insert(key); }
  void on_evict(ExpertKey key) override {
    evicted_(key);
    policy_->on_evict(key);
  }
  void on_prediction(std::span<const std::pair<ExpertKey, float>> ranked) override { policy_->on_prediction(ranked); }
  void on_scores(LayerId layer, std::span<const std::pair<ExpertId, float>> probable) override {
    policy_->on_scores(layer, probable);
  }
  bool wants_scores() const override { return policy_->wants_scores(); }
  void use_counts(const AccessCounts& counts) override { policy_->use_counts(counts); }
  void rank_victims(LayerId current, std::vector<ExpertKey>& out) override { policy_->rank_victims(current, out); }
  PolicyCounters counters() const override { return policy_->counters(); }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  std::function<void(ExpertKey)> evicted_;
};

class Run {
 public:
  Run(const Workload& workload, Forecast& forecast, const ReplayOptions& options)
      : workload_(workload),
        forecast_(forecast),
        options_(options),
        link_(options.link),
        pool_bytes_(checked_pool(workload, options)),
        landing_bytes_(landing_bytes(workload, options)),
        memory_(pool_bytes_ + landing_bytes_),
        controller_(controller_options(workload, options)) {
    if (landing_bytes_ > 0) future_ = workload.layer_events();
    auto policy = std::make_unique<Watched>(
        make_policy(options.policy, {workload.layers(), &clock_, 0, landing_bytes_ > 0 ? &future_ : nullptr}),
        [this](ExpertKey key) { on_evict(key); });
    cache_ = std::make_unique<ExpertCache>(workload.geometry, std::move(policy), memory_.bytes(),
                                           ExpertCacheOptions{0.25, false});
    for (const auto& layer : workload.geometry.layers) most_experts_ = std::max(most_experts_, size_t(layer.experts));
    if (options.governor) {
      GovernorOptions governor;
      governor.mode = *options.governor;
      governor.pool_bytes = pool_bytes_, governor.pool_share = options.pool_share;
      governor.most_rows = std::numeric_limits<int64_t>::max();
      governor_ = std::make_unique<PrefetchGovernor>(governor);
    }
  }

  ReplayResult result() {
    double distances = 0;
    for (step_ = 0; step_ < workload_.steps.size(); ++step_) {
      distance_ = adaptive() ? controller_.distance() : options_.distance;
      distances += distance_;
      run_step();
    }
    out_.steps = workload_.steps.size();
    out_.tokens = workload_.tokens;
    out_.total_seconds = seconds(clock_.now());
    out_.mean_distance = distances / double(std::max<size_t>(1, out_.steps));
    for (const auto& [key, unused] : unused_) out_.bytes_wasted += unused.bytes;
    if (adaptive()) out_.distance = controller_.stats();
    if (governor_) out_.governor = governor_->stats();
    return std::move(out_);
  }

 private:
  static uint64_t checked_pool(const Workload& workload, const ReplayOptions& o) {
    EF_CHECK(o.distance >= 0 && o.most_distance >= 1, ConfigError,
             "distance: expected 0 (adaptive) or more and a limit of 1 or more, found {} and {}", o.distance,
             o.most_distance);
    EF_CHECK(o.before_router >= 0 && o.before_router < 1, ConfigError,
             "share before the router: expected 0 to below 1, found {}", o.before_router);
    EF_CHECK(o.pool_share >= 0 && o.pool_share <= 1, ConfigError, "share for copies ahead: expected 0 to 1, found {}",
             o.pool_share);
    const uint64_t bytes = workload.geometry.pool_bytes(o.budget_bytes);
    EF_CHECK(bytes >= workload.geometry.largest_footprint(), ConfigError,
             "budget: {} bytes are too few: the largest expert takes {} (all experts {})", o.budget_bytes,
             workload.geometry.largest_footprint(), workload.geometry.total_footprint());
    return bytes;
  }
  // Room for the largest event, where the policy knows the future.
  static uint64_t landing_bytes(const Workload& workload, const ReplayOptions& o) {
    const auto all = replay_policies();
    const auto info = std::find_if(all.begin(), all.end(), [&](const PolicyInfo& i) { return i.name == o.policy; });
    uint64_t most = 0;
    if (info == all.end() || !info->needs_future) return most;
    for (const WorkloadStep& step : workload.steps)
      for (size_t i = 0; i < step.events.size(); ++i)
        most = std::max(most, step.events[i].experts.size() * workload.geometry.footprint(LayerId(i)));
    return most;
  }
  static StepControllerOptions controller_options(const Workload& workload, const ReplayOptions& o) {
    StepControllerOptions c;
    c.most = o.most_distance;
    c.diversity_gain = o.diversity_gain;
    double layers = 0, experts = 0, bytes = 0;
    for (const auto& layer : workload.geometry.layers) {
      layers += layer.experts > 0;
      experts += layer.experts;
      bytes += double(layer.experts) * double(layer.slot_bytes);
    }
    c.expert_bytes = experts > 0 ? bytes / experts : 0;
    c.expected = double(workload.trace->header.top_k);
    c.bandwidth = o.first_renewal > 0 ? o.first_renewal : o.link.bytes_per_second;
    Duration first{0};
    for (const Duration d : workload.steps.front().compute) first += d;
    c.layer_seconds = seconds(first) / std::max(1., layers);
    return c;
  }
  bool adaptive() const { return options_.distance == 0; }
  uint64_t slot_bytes(ExpertKey key) const { return workload_.geometry.layers[size_t(key.layer)].slot_bytes; }

  void run_step();
  void run_layer(LayerId layer);
  void advance(Duration to);
  void open(LayerId layer, const TraceEvent& event);
  void submit(std::span<const ExpertCache::Grant> grants, LayerId layer);
  struct Wanted {
    ExpertKey key;
    float probability;
    int ahead;  // layers
  };
  void copy_ahead(LayerId layer);
  void name_layer(LayerId layer, LayerId target, int ahead, std::vector<Wanted>& wanted);
  void copy_by_rule(LayerId layer, std::span<const Wanted> wanted);
  void copy_by_governor(LayerId layer, std::span<const Wanted> wanted);
  void note_scores(LayerId layer);
  LinkView link_view() const {
    return {any_arrived_ ? link_.bandwidth() : 0., link_.demand_busy_seconds(), link_.ahead_bytes()};
  }
  void compute(LayerId layer, const TraceEvent& event, Duration each);
  void count_event(LayerId layer, const TraceEvent& event);
  std::optional<uint64_t> use_ahead(ExpertKey key);
  void end_step();
  double diversity() const;
  void change_link();
  void on_evict(ExpertKey key) {
    const auto it = unused_.find(key);
    if (it == unused_.end()) return;
    out_.bytes_wasted += it->second.bytes;
    unused_.erase(it);
  }

  const Workload& workload_;
  Forecast& forecast_;
  const ReplayOptions& options_;
  ManualClock clock_;
  Link link_;
  const uint64_t pool_bytes_, landing_bytes_;
  std::vector<LayerEvent> future_;
  AddressRange memory_;
  StepController controller_;
  std::unique_ptr<PrefetchGovernor> governor_;
  RegimeTracker regimes_;
  bool any_arrived_ = false;
  std::vector<std::pair<ExpertId, float>> probable_;
  std::unique_ptr<ExpertCache> cache_;
  size_t most_experts_ = 0, step_ = 0;
  int distance_ = 1;
  StepId id_ = 0;
  ExpertCache::Request request_;
  std::vector<ExpertCache::Grant> granted_, ready_;
  std::vector<ExpertId> deferred_, coming_;
  struct Unused {
    uint64_t bytes = 0;
    uint64_t arrived = 0;  // MoE layers begun by then
    bool judged = false;   // its layer came, and wanted others
  };
  std::unordered_map<ExpertKey, Unused> unused_;  // copied ahead and there, not asked for
  uint64_t layers_begun_ = 0;
  std::unordered_map<ExpertKey, bool> on_way_ahead_;  // queued or under way; whether it has been asked for
  std::unordered_map<ExpertKey, float> named_;        // by the forecast, for layers to come
  std::vector<float> probabilities_;
  std::vector<std::pair<ExpertKey, float>> likely_;
  std::vector<int> expected_;  // by layer: candidates that were not near when it came within the distance; -1: none yet
  CandidateRanking ranking_;
  double busy_before_ = 0;
  uint64_t arrived_bytes_ = 0, tokens_ = 0, hits_before_ = 0, accesses_before_ = 0;
  size_t next_change_ = 0;
  ReplayResult out_;
};

void Run::advance(Duration to) {
  for (const Link::Copy& copy : link_.arrived(to)) {
    cache_->complete(copy.key);
    arrived_bytes_ += copy.bytes;
    any_arrived_ = true;
    const auto way = on_way_ahead_.find(copy.key);
    const bool ahead = way != on_way_ahead_.end();
    (ahead ? out_.bytes_ahead : out_.bytes_demand) += copy.bytes;
    if (!ahead) continue;
    if (!way->second) unused_[copy.key] = {copy.bytes, layers_begun_, false};
    on_way_ahead_.erase(way);
  }
  if (to > clock_.now()) clock_.advance(to - clock_.now());
}

void Run::run_step() {
  for (const ExpertKey key : link_.cancel([](ExpertKey) { return true; })) {
    on_way_ahead_.erase(key);
    cache_->fail(key, nullptr);
    ++out_.ahead_cancelled;
  }
  named_.clear();
  expected_.assign(workload_.geometry.layers.size(), -1);
  change_link();
  id_ = cache_->begin_step();
  const WorkloadStep& step = workload_.steps[step_];
  const Regime& regime = regimes_.begin_step(int64_t(step.rows));
  if (governor_) {
    governor_->set_budget_share(regime.byte_share);
    governor_->begin_step(clock_.now(), int64_t(step.rows));
  }
  const double stalled_before = out_.stall_seconds;
  if (adaptive() && step.rows > 1) controller_.on_diversity(diversity());
  copy_ahead(-1);
  for (size_t layer = 0; layer < step.events.size(); ++layer) run_layer(LayerId(layer));
  cache_->end_step(id_);
  if (governor_) governor_->end_step(clock_.now(), out_.stall_seconds - stalled_before);
  end_step();
}

void Run::run_layer(LayerId layer) {
  const WorkloadStep& step = workload_.steps[step_];
  const TraceEvent& event = step.events[size_t(layer)];
  const Duration all = step.compute[size_t(layer)];
  out_.compute_seconds += seconds(all);
  if (event.experts.empty()) {
    advance(clock_.now() + all);
    return;
  }
  ++layers_begun_;
  const Duration before = Duration(std::llround(double(all.count()) * options_.before_router));
  advance(clock_.now() + before);
  open(layer, event);
  forecast_.observe(step_, layer);
  copy_ahead(layer);
  compute(layer, event, (all - before) / int64_t(event.experts.size()));
  if (landing_bytes_ > 0) cache_->trim(pool_bytes_, layer);
}

void Run::open(LayerId layer, const TraceEvent& event) {
  for (const ExpertKey key : link_.cancel([&](ExpertKey key) {
         return key.layer == layer && !std::binary_search(event.experts.begin(), event.experts.end(), key.expert);
       })) {
    on_way_ahead_.erase(key);
    cache_->fail(key, nullptr);
    ++out_.ahead_cancelled;
    controller_.on_prefetch(false);
  }
  count_event(layer, event);
  if (governor_) governor_->on_event(layer, event.experts, link_view(), clock_.now());
  note_scores(layer);
  request_ = {id_, layer, event.experts, event.rows, false, int64_t(workload_.steps[step_].rows)};
  request_.transient = request_.rows >= 32 && landing_bytes_ == 0;
  request_.eager = request_.transient && regimes_.now().eager_eviction;
  cache_->open(request_, granted_, deferred_);
  ready_.clear();
  coming_.clear();
  submit(granted_, layer);
}

void Run::count_event(LayerId layer, const TraceEvent& event) {
  int used = 0;
  uint64_t lead = std::numeric_limits<uint64_t>::max();
  for (const ExpertId expert : event.experts) {
    const ExpertKey key{layer, expert};
    ++out_.accesses;
    const ExpertState state = cache_->look(key).state;
    const bool was_named = named_.count(key) > 0;
    out_.predicted += was_named;
    if (state == ExpertState::kResident) {
      ++out_.hits;
      out_.ready += was_named;
    } else if (state == ExpertState::kInFlight) {
      ++out_.late;
    } else {
      ++out_.misses;
    }
    if (const auto layers = use_ahead(key)) ++used, lead = std::min(lead, *layers);
  }
  // As the engine's Foresight: too early if even the last of them came earlier than the formula says the link needs.
  for (; used > 0; --used) controller_.on_prefetch(lead <= uint64_t(controller_.formula()));
  // What was copied ahead for this event and is not wanted was one too many.
  for (auto& [key, unused] : unused_) {
    if (key.layer != layer || unused.judged) continue;
    unused.judged = true;
    controller_.on_prefetch(false);
  }
  std::erase_if(named_, [&](const auto& entry) { return entry.first.layer == layer; });
}

// Of one that is asked for and was copied ahead: layers that it was there before; 0: it is on its way. Nothing of
// others, and of what an earlier event has judged.
std::optional<uint64_t> Run::use_ahead(ExpertKey key) {
  if (const auto way = on_way_ahead_.find(key); way != on_way_ahead_.end()) {
    way->second = true;
    ++out_.ahead_used;
    return 0;
  }
  const auto there = unused_.find(key);
  if (there == unused_.end()) return std::nullopt;
  ++out_.ahead_used;
  const Unused unused = there->second;
  unused_.erase(there);
  return unused.judged ? std::nullopt : std::optional(layers_begun_ - unused.arrived);
}

void Run::submit(std::span<const ExpertCache::Grant> grants, LayerId layer) {
  for (const ExpertCache::Grant& grant : grants) {
    const ExpertKey key{layer, grant.expert};
    if (grant.state == ExpertState::kResident) {
      ready_.push_back(grant);
      continue;
    }
    coming_.push_back(grant.expert);
    if (grant.fill) {
      link_.submit(key, slot_bytes(key), false, clock_.now());
    } else {
      link_.promote(key);
    }
  }
}

// What the step's routers say of near misses, as the trace has it.
void Run::note_scores(LayerId layer) {
  const WorkloadStep& step = workload_.steps[step_];
  constexpr size_t kFewRows = 31;
  if (!options_.scores || step.rows > kFewRows) return;
  const TraceLayer& from = workload_.trace->steps[step.trace_step].layers[size_t(layer)];
  const auto count = size_t(workload_.trace->header.candidates);
  std::vector<float> sum(size_t(workload_.geometry.layers[size_t(layer)].experts));
  for (size_t i = step.first_row * count; i < (step.first_row + step.rows) * count && i < from.candidates.size(); ++i)
    sum[from.candidates[i]] += trace_probability(from.probabilities[i]) / float(step.rows);
  probable_.clear();
  for (size_t e = 0; e < sum.size(); ++e)
    if (sum[e] > 0) probable_.emplace_back(ExpertId(e), sum[e]);
  cache_->note_scores(layer, probable_);
}

// What is likely within the distance: told to the policy, and copied behind the demand as far as slots and link allow.
void Run::copy_ahead(LayerId layer) {
  if (distance_ < 1 || (governor_ && !governor_->ahead())) return;
  likely_.clear();
  std::vector<Wanted> wanted;
  LayerId next = layer;
  for (int ahead = 1; ahead <= distance_;) {
    if (++next >= workload_.layers()) break;
    if (workload_.geometry.layers[size_t(next)].experts == 0) continue;
    name_layer(layer, next, ahead, wanted);
    ++ahead;
  }
  if (likely_.empty()) return;
  cache_->predict(likely_);
  if (options_.advise_only) return;
  if (governor_) {
    copy_by_governor(layer, wanted);
  } else {
    copy_by_rule(layer, wanted);
  }
}

// One layer's forecast: into likely_, and what of it is worth a copy into `wanted`.
void Run::name_layer(LayerId layer, LayerId target, int ahead, std::vector<Wanted>& wanted) {
  const size_t experts = size_t(workload_.geometry.layers[size_t(target)].experts);
  probabilities_.assign(experts, 0.f);
  forecast_.predict(step_, layer, target, probabilities_);
  CandidateRule rule = options_.candidates.of(target);
  const int rows = int(workload_.steps[step_].rows);
  rule.least *= rows, rule.most *= rows;
  int absent = 0, taken = 0, named = 0;
  for (const auto& [key, probability] : ranking_.rank(target, probabilities_, 1, rule)) {
    if (probability <= 0) break;  // of these the forecast has no opinion
    ++named;
    likely_.push_back({key, probability});
    named_[key] = probability;
    if (cache_->look(key).state != ExpertState::kAbsent) continue;
    ++absent;
    if (probability < options_.least_probability) continue;
    if (governor_ && !regimes_.admits(probability, taken, int(experts))) continue;
    ++taken;
    wanted.push_back({key, probability, ahead});
  }
  // When a layer comes within the distance, what it lacks has the longest time to come.
  if (named > 0 && expected_[size_t(target)] < 0) expected_[size_t(target)] = absent;
}

void Run::copy_by_rule(LayerId layer, std::span<const Wanted> wanted) {
  const auto most = uint64_t(options_.pool_share * double(pool_bytes_));
  uint64_t held = cache_->reserved_bytes();
  const double layer_seconds = seconds(workload_.steps[step_].compute[size_t(std::max(layer, 0))]);
  double queued = link_.ahead_seconds();
  for (const Wanted& w : wanted) {
    const uint64_t bytes = workload_.geometry.footprint(w.key.layer);
    if (held + bytes > most) break;
    const double takes = double(slot_bytes(w.key)) / link_.bandwidth();
    const double until = double(w.key.layer - layer) * layer_seconds;
    if (options_.within_link && queued + takes > until) continue;
    if (!cache_->reserve(w.key, std::max(layer, 0))) continue;
    held += bytes;
    queued += takes;
    on_way_ahead_[w.key] = false;
    ++out_.ahead;
    link_.submit(w.key, slot_bytes(w.key), true, clock_.now());
  }
}

// As the engine does (engine/foresight.cpp).
void Run::copy_by_governor(LayerId layer, std::span<const Wanted> wanted) {
  std::vector<PrefetchCandidate> candidates;
  for (const Wanted& w : wanted) candidates.push_back({w.key, w.probability, w.ahead, slot_bytes(w.key)});
  const PrefetchPlan plan = governor_->plan(candidates, likely_, cache_->reserved_bytes(), link_view());
  for (const ExpertKey key : link_.cancel([&](ExpertKey key) {
         return std::find(plan.cancel.begin(), plan.cancel.end(), key) != plan.cancel.end();
       })) {
    on_way_ahead_.erase(key);
    cache_->fail(key, nullptr);
    ++out_.ahead_cancelled;
  }
  for (const PrefetchCandidate& c : plan.issue) {
    if (!cache_->reserve(c.key, std::max(layer, 0))) {
      governor_->drop(c.key);
      continue;
    }
    on_way_ahead_[c.key] = false;
    ++out_.ahead;
    link_.submit(c.key, c.bytes, true, clock_.now());
  }
}

void Run::compute(LayerId layer, const TraceEvent& event, Duration each) {
  Duration stalled{0};
  const size_t missed = coming_.size() + deferred_.size();
  for (;;) {
    for (const ExpertCache::Grant& grant : ready_) {
      advance(clock_.now() + each);
      cache_->release(id_, {layer, grant.expert});
    }
    ready_.clear();
    if (!deferred_.empty()) {
      cache_->grant(request_, deferred_, granted_);
      submit(granted_, layer);
      if (!ready_.empty()) continue;
    }
    std::vector<ExpertId> still;
    for (const ExpertId expert : coming_) {
      const ExpertKey key{layer, expert};
      if (cache_->look(key).state == ExpertState::kResident) {
        ready_.push_back({expert, {}, ExpertState::kResident, false});
      } else {
        still.push_back(expert);
      }
    }
    coming_ = std::move(still);
    if (!ready_.empty()) continue;
    if (coming_.empty() && deferred_.empty()) break;
    const auto next = link_.next_arrival();
    EF_CHECK(next.has_value(), ConfigError, "replay: layer {} waits for an expert that nobody brings", layer);
    stalled += std::max(Duration(0), *next - clock_.now());
    advance(std::max(*next, clock_.now()));
  }
  out_.stall_seconds += seconds(stalled);
  if (stalled > Duration(0)) {
    ++out_.stalls;
    controller_.on_stall();
  }
  if (!adaptive()) return;
  Duration all = each * int64_t(event.experts.size());
  all = Duration(std::llround(double(all.count()) / (1 - options_.before_router)));
  const int expected = expected_[size_t(layer)];
  controller_.on_layer(expected >= 0 ? double(expected) : double(missed), seconds(all));
}

// Sum of pairwise squared distances of the step's rows in the first layer that routes: of its inputs where the trace
// has them (the engine has those of layer 0), else of what the rows chose, each a vector of ones and zeros.
double Run::diversity() const {
  const WorkloadStep& step = workload_.steps[step_];
  const TraceHeader& header = workload_.trace->header;
  const auto sparse = std::find_if(step.events.begin(), step.events.end(),
                                   [](const TraceEvent& event) { return !event.experts.empty(); });
  if (sparse == step.events.end()) return 0;
  const auto& x = workload_.trace->steps[step.trace_step].layers[size_t(sparse - step.events.begin())].x;
  const double rows = double(step.rows);
  if (x.empty()) {
    double norm = 0;  // of the vectors' sum
    for (const int32_t n : sparse->rows) norm += double(n) * double(n);
    return rows * rows * double(header.top_k) - norm;
  }
  std::vector<float> inputs(step.rows * size_t(header.hidden));
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = f16_to_f32(x[step.first_row * size_t(header.hidden) + i]);
  return pairwise_distance(inputs, int64_t(step.rows));
}

void Run::change_link() {
  if (next_change_ >= options_.link_changes.size() || tokens_ < options_.link_changes[next_change_].first) return;
  link_.set_bandwidth(options_.link_changes[next_change_++].second);
}

void Run::end_step() {
  tokens_ += workload_.steps[step_].rows;
  if (!adaptive()) return;
  const double busy = link_.busy_seconds(clock_.now());
  if (arrived_bytes_ > 0) controller_.on_copies(double(arrived_bytes_), std::max(1e-12, busy - busy_before_));
  busy_before_ = busy;
  arrived_bytes_ = 0;
  controller_.on_hits(out_.hits - hits_before_, out_.accesses - accesses_before_);
  hits_before_ = out_.hits;
  accesses_before_ = out_.accesses;
  const int before = controller_.distance();
  controller_.end_step(int64_t(workload_.steps[step_].rows));
  if (out_.distances.empty() || controller_.distance() != before)
    out_.distances.push_back({tokens_, controller_.distance()});
  const StepControllerStats stats = controller_.stats();
  out_.distance_within += std::abs(stats.distance - stats.formula) <= 1;
}

}  // namespace

ReplayResult replay(const Workload& workload, Forecast& forecast, const ReplayOptions& options) {
  return Run(workload, forecast, options).result();
}

uint64_t clairvoyant_bytes(const Workload& workload, uint64_t budget_bytes) {
  return clairvoyant_misses(workload.geometry, workload.layer_events(), workload.geometry.pool_bytes(budget_bytes),
                            false)
      .bytes_missed;
}

}  // namespace ef
