#include "expertflow/model/experts.h"

#include <algorithm>
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

class AllResident final : public Experts {
 public:
  AllResident(const Config& config, const ExpertStore& store, Backend& backend) : config_(config), backend_(backend) {
    auto stream = backend.make_stream();
    std::vector<std::byte> slot, staging;
    layers_.resize(config.layers.size());
    for (const LayerExperts& layer : store.layers()) load(store, layer, *stream, slot, staging);
  }

  void run(LayerId layer, const float* x, const RoutingView& routing, float* out, Stream& stream) override {
    const Layer& l = layers_[size_t(layer)];
    const size_t n = size_t(routing.tokens) * size_t(routing.top_k);
    ids_.resize(n);
    backend_.copy_to_host(ids_.data(), routing.ids, n * sizeof(int32_t), stream);
    stream.synchronize();
    AssignmentGroups groups =
        group_assignments({routing.tokens, routing.top_k, ids_.data(), nullptr}, config_.router.experts);
    std::vector<ExpertGroup> work;
    for (size_t g = 0; g < groups.experts.size(); ++g)
      work.push_back(
          {view_slot(l.layout, l.slots.data() + uint64_t(groups.experts[g]) * l.layout.bytes), groups.of(g)});
    const uint64_t bytes = all_resident_scratch_bytes(config_, routing.tokens);
    if (expert_out_.size() < bytes) {
      expert_out_ = Buffer();
      expert_out_ = backend_.allocate(bytes);
    }
    backend_.experts(stream, {config_.activation, config_.hidden, config_.expert_ffn, routing.top_k, work, x,
                              expert_out_.as<float>()});
    backend_.combine(stream,
                     {routing.tokens, config_.hidden, routing.top_k, expert_out_.as<float>(), routing.weights, out});
  }

 private:
  struct Layer {
    ExpertLayout layout;
    Buffer slots;
  };

  void load(const ExpertStore& store, const LayerExperts& layer, Stream& stream, std::vector<std::byte>& slot,
            std::vector<std::byte>& staging) {
    Layer& l = layers_[size_t(layer.layer)];
    l.layout = layer.layout;
    for (const ExpertPart& part : l.layout.parts)
      EF_CHECK(part.role > ExpertRole::kDown || backend_.supports(Op::kExperts, part.format), ModelError,
               "layer {}: backend {} does not compute experts in {}", layer.layer, backend_.name(),
               format_info(part.format).name);
    const uint64_t bytes = l.layout.bytes;
    l.slots = backend_.allocate(bytes * layer.count());
    slot.resize(bytes);
    for (size_t e = 0; e < layer.count(); ++e) {
      store.fill({layer.layer, ExpertId(e)}, slot, staging);
      backend_.copy_to_device(l.slots.data() + e * bytes, slot.data(), bytes, stream);
      stream.synchronize();
    }
  }

  const Config config_;
  Backend& backend_;
  std::vector<Layer> layers_;
  std::vector<int32_t> ids_;
  Buffer expert_out_;
};

}  // namespace

uint64_t all_resident_scratch_bytes(const Config& config, int64_t rows) {
  return uint64_t(rows) * uint64_t(config.router.top_k) * uint64_t(config.hidden) * sizeof(float);
}

std::unique_ptr<Experts> make_all_resident(const Config& config, const ExpertStore& store, Backend& backend) {
  return std::make_unique<AllResident>(config, store, backend);
}

}  // namespace ef
