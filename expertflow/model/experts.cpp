#include "expertflow/model/experts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "expertflow/base/errors.h"

namespace ef {

AssignmentGroups group_assignments(const RoutingView& routing, int experts) {
  AssignmentGroups out;
  const int64_t n = routing.tokens * routing.top_k;
  std::vector<int32_t> count(size_t(experts), 0);
  for (int64_t a = 0; a < n; ++a) {
    int32_t id = routing.ids[a];
    EF_CHECK(id >= 0 && id < experts, DeviceError, "router chose expert {} of {} for token {}", id, experts,
             a / routing.top_k);
    ++count[size_t(id)];
  }
  std::vector<int32_t> next(size_t(experts), 0);
  int32_t begin = 0;
  for (int e = 0; e < experts; ++e) {
    if (count[size_t(e)] == 0) continue;
    out.experts.push_back(e);
    out.begin.push_back(begin);
    next[size_t(e)] = begin;
    begin += count[size_t(e)];
  }
  out.begin.push_back(begin);
  out.order.resize(size_t(n));
  for (int64_t a = 0; a < n; ++a) out.order[size_t(next[size_t(routing.ids[a])]++)] = int32_t(a);
  return out;
}

namespace {

// Fills slots of all layers, several experts at once: one thread neither reads nor copies as fast as the machine can.
class SlotLoader {
 public:
  SlotLoader(const ExpertStore& store, Backend& backend) : store_(store), backend_(backend) {}

  /// slots: of the layer, one after the other.
  void add(const LayerExperts& layer, std::byte* slots) {
    for (size_t e = 0; e < layer.count(); ++e)
      work_.push_back({{layer.layer, ExpertId(e)}, slots + e * layer.layout.bytes, layer.layout.bytes});
  }
  void run() {
    const size_t threads =
        std::min({size_t(kMostLoaders), size_t(std::max(1u, std::thread::hardware_concurrency())), work_.size()});
    std::vector<std::thread> pool;
    for (size_t t = 1; t < threads; ++t) pool.emplace_back([this] { serve(); });
    serve();
    for (std::thread& t : pool) t.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Item {
    ExpertKey key;
    std::byte* slot;
    uint64_t bytes;
  };

  void serve() try {
    const auto stream = backend_.make_stream();
    std::vector<std::byte> staging;
    std::shared_ptr<std::byte> host;
    uint64_t size = 0;
    for (size_t i; (i = next_++) < work_.size();) {
      const Item& item = work_[i];
      if (backend_.memory_is_host()) {
        store_.fill(item.key, {item.slot, item.bytes}, staging);
        continue;
      }
      if (size < item.bytes) host = backend_.allocate_host(item.bytes), size = item.bytes;
      store_.fill(item.key, {host.get(), item.bytes}, staging);
      backend_.copy_to_device(item.slot, host.get(), item.bytes, *stream);
      stream->synchronize();
    }
  } catch (...) {
    next_ = work_.size();  // the others stop
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }

  const ExpertStore& store_;
  Backend& backend_;
  std::vector<Item> work_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

class AllResident final : public Experts {
 public:
  AllResident(const Config& config, const ExpertStore& store, Backend& backend, const DriftOptions& drift)
      : config_(config), backend_(backend) {
    layers_.resize(config.layers.size());
    SlotLoader loader(store, backend);
    for (const LayerExperts& layer : store.layers()) {
      place(layer);
      loader.add(layer, layers_[size_t(layer.layer)].slots.data());
    }
    loader.run();
    const auto stream = backend.make_stream();
    for (Layer& l : layers_)
      if (!l.views.empty() && backend.routes_on_device(l.views.front()))
        l.table = backend.expert_table(l.views, *stream);
    stream->synchronize();
    std::vector<Format> formats;
    for (const Layer& l : layers_) formats.push_back(l.table ? coarsest(l.views.front()) : Format::kCount);
    drift_ = Drift(drift, std::move(formats));
  }

  void begin_step() override { drift_.begin_step(); }
  bool recordable(int64_t) const override {
    return !drift_.next_step_is_checked() && !drift_.any_exact() &&
           std::all_of(layers_.begin(), layers_.end(), [](const Layer& l) { return l.views.empty() || l.table; });
  }
  std::vector<RoutedExpertsArgs> kinds() const override {
    std::vector<RoutedExpertsArgs> out;
    const auto same = [](const ExpertView& a, const ExpertView& b) {
      return a.gate.format == b.gate.format && a.up.format == b.up.format && a.down.format == b.down.format;
    };
    for (const Layer& l : layers_) {
      if (!l.table) continue;
      const bool seen = std::any_of(out.begin(), out.end(),
                                    [&](const RoutedExpertsArgs& a) { return same(*a.kind, l.views.front()); });
      if (!seen) out.push_back(args_of(l));
    }
    return out;
  }
  const DriftStats* drift() const override { return &drift_.stats(); }

  std::optional<RoutedExpertsArgs> whole(LayerId layer) const override {
    const Layer& l = layers_[size_t(layer)];
    if (!l.table || drift_.exact(layer) || drift_.wants(layer)) return {};
    return args_of(l);
  }

  void reserve(int64_t rows) override {
    const uint64_t bytes = all_resident_scratch_bytes(config_, rows);
    if (expert_out_.size() >= bytes) return;
    expert_out_ = Buffer();  // before the larger one: never both
    expert_out_ = backend_.allocate(bytes, {Region::kDynamic, "expert outputs"});
  }

  void run(LayerId layer, const float* x, const RoutingView& routing, const ExpertsOut& out, Stream& stream) override {
    const Layer& l = layers_[size_t(layer)];
    if (!l.table || drift_.exact(layer)) {
      by_groups(l, x, routing, out, stream);
    } else if (drift_.wants(layer)) {
      checked(layer, x, routing, out, stream);
    } else {
      on_device(l, x, routing, out, stream);
    }
  }

 private:
  struct Layer {
    Buffer slots;
    std::vector<ExpertView> views;
    Buffer table;  // empty where the host has to see the choices
  };

  RoutedExpertsArgs args_of(const Layer& l) const {
    RoutedExpertsArgs a;
    a.activation = config_.activation;
    a.hidden = config_.hidden, a.ffn = config_.expert_ffn, a.top_k = config_.router.top_k;
    a.kind = &l.views.front(), a.experts = int(l.views.size());
    a.table = l.table.data();
    return a;
  }

  void on_device(const Layer& l, const float* x, const RoutingView& routing, const ExpertsOut& out, Stream& stream) {
    RoutedExpertsArgs a = args_of(l);
    a.rows = routing.tokens, a.top_k = routing.top_k;
    a.ids = routing.ids, a.weights = routing.weights;
    a.x = x, a.out = out.out, a.add_to = out.add_to, a.add_scale = out.add_scale;
    backend_.routed_experts(stream, a);
  }

  void by_groups(const Layer& l, const float* x, const RoutingView& routing, const ExpertsOut& out, Stream& stream) {
    const size_t n = size_t(routing.tokens) * size_t(routing.top_k);
    ids_.resize(n);
    backend_.copy_to_host(ids_.data(), routing.ids, n * sizeof(int32_t), stream);
    stream.synchronize();
    const AssignmentGroups groups =
        group_assignments({routing.tokens, routing.top_k, ids_.data(), nullptr}, config_.router.experts);
    std::vector<ExpertGroup> work;
    for (size_t g = 0; g < groups.experts.size(); ++g)
      work.push_back({l.views[size_t(groups.experts[g])], groups.of(g)});
    reserve(routing.tokens);
    backend_.experts(stream, {config_.activation, config_.hidden, config_.expert_ffn, routing.top_k, work, x,
                              expert_out_.as<float>()});
    backend_.combine(
        stream, {routing.tokens, config_.hidden, routing.top_k, expert_out_.as<float>(), routing.weights, out.out});
    if (out.add_to) backend_.add_scaled(stream, out.add_to, out.out, out.add_scale, routing.tokens * config_.hidden);
  }

  // The first rows twice; what goes on is the exact result if the fast one is not trusted any more.
  void checked(LayerId layer, const float* x, const RoutingView& routing, const ExpertsOut& out, Stream& stream) {
    constexpr int64_t kMostRows = 64;
    const Layer& l = layers_[size_t(layer)];
    const RoutingView some{std::min(routing.tokens, kMostRows), routing.top_k, routing.ids, routing.weights};
    std::vector<float> fast(size_t(some.tokens * config_.hidden)), exact(fast.size());
    const auto fetch = [&](std::vector<float>& to) {
      backend_.copy_to_host(to.data(), out.out, to.size() * sizeof(float), stream);
      stream.synchronize();
    };
    by_groups(l, x, some, out.out, stream);
    fetch(exact);
    on_device(l, x, routing, out.out, stream);
    fetch(fast);
    if (!drift_.record(layer, fast, exact)) by_groups(l, x, routing, out.out, stream);
    if (out.add_to) backend_.add_scaled(stream, out.add_to, out.out, out.add_scale, routing.tokens * config_.hidden);
  }

  // Of an expert's formats, that which rounds most: bfloat16, then float16 and blocks.
  static Format coarsest(const ExpertView& e) {
    for (const MatrixView* w : {&e.gate, &e.up, &e.down})
      if (w->format == Format::kBF16) return w->format;
    for (const MatrixView* w : {&e.gate, &e.up, &e.down})
      if (format_info(w->format).block_elements > 1) return w->format;
    return e.gate.format;
  }

  void place(const LayerExperts& layer) {
    Layer& l = layers_[size_t(layer.layer)];
    for (const ExpertPart& part : layer.layout.parts)
      EF_CHECK(part.role > ExpertRole::kDown || backend_.supports(Op::kExperts, part.format), ModelError,
               "layer {}: backend {} does not compute experts in {}", layer.layer, backend_.name(),
               format_info(part.format).name);
    const uint64_t bytes = layer.layout.bytes;
    l.slots = backend_.allocate(bytes * layer.count(), {Region::kStatic, "experts", layer.layer});
    for (size_t e = 0; e < layer.count(); ++e) l.views.push_back(view_slot(layer.layout, l.slots.data() + e * bytes));
  }

  const Config config_;
  Backend& backend_;
  std::vector<Layer> layers_;
  std::vector<int32_t> ids_;
  Buffer expert_out_;
  Drift drift_;
};

}  // namespace

uint64_t all_resident_scratch_bytes(const Config& config, int64_t rows) {
  return uint64_t(rows) * uint64_t(config.router.top_k) * uint64_t(config.hidden) * sizeof(float);
}

std::unique_ptr<Experts> make_all_resident(const Config& config, const ExpertStore& store, Backend& backend,
                                           const DriftOptions& drift) {
  return std::make_unique<AllResident>(config, store, backend, drift);
}

}  // namespace ef
