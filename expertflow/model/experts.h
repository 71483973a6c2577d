// The one interface between the model and wherever experts live. The model's MoE layer calls run() and never sees a
// cache.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/base/ids.h"
#include "expertflow/model/config.h"
#include "expertflow/model/drift.h"
#include "expertflow/weights/expert_store.h"

namespace ef {

/// Choices of a layer's router, in the backend's memory: [tokens, top_k], rank order.
struct RoutingView {
  int64_t tokens = 0;
  int top_k = 0;
  const int32_t* ids = nullptr;
  const float* weights = nullptr;
};

/// Where a layer's result goes: out, [tokens, hidden]. With add_to it is multiplied by add_scale and added there, and
/// out is scratch.
struct ExpertsOut {
  ExpertsOut(float* to, float* add = nullptr, float scale = 1.f) : out(to), add_to(add), add_scale(scale) {}
  float* out;
  float* add_to;
  float add_scale;
};

class Experts {
 public:
  virtual ~Experts() = default;
  /// A step is one forward call. What a step may touch is not evicted before the step has ended.
  virtual void begin_step() {}
  virtual void end_step() {}
  /// out[tokens, hidden] = sum over ranks, in rank order, of weight * expert(x). x: [tokens, hidden], normalised input
  /// of the block. Results do not depend on where experts were, nor on the order in which they came. Throws DeviceError
  /// if an expert cannot be had; the step then fails and the object stays usable.
  virtual void run(LayerId layer, const float* x, const RoutingView& routing, const ExpertsOut& out,
                   Stream& stream) = 0;
  /// run() as one op of the backend, all but rows, x, choices and results; nothing where it does more than that.
  virtual std::optional<RoutedExpertsArgs> whole(LayerId /*layer*/) const { return {}; }
  /// Takes what run() needs beside the experts in steps of so many rows, so that it takes nothing later.
  virtual void reserve(int64_t /*rows*/) {}
  /// Whether run() leaves the host out, so that a stream can record it. `rows`: of the step.
  virtual bool recordable(int64_t /*rows*/) const { return false; }
  /// One of each kind of routed experts (formats, shapes) that the backend has a table of; x, choices and results
  /// unset.
  virtual std::vector<RoutedExpertsArgs> kinds() const { return {}; }
  /// What checks of fast arithmetic have found; null: there are none.
  virtual const DriftStats* drift() const { return nullptr; }
};

/// Every expert in memory: short, and the oracle for all other implementations. drift: checks of backends that route on
/// the device, whose arithmetic is not exact.
std::unique_ptr<Experts> make_all_resident(const Config& config, const ExpertStore& store, Backend& backend,
                                           const DriftOptions& drift = {});
/// Threads at most that fill slots meanwhile, each with a stream.
constexpr int kMostLoaders = 8;
/// What it takes beside the experts in steps of `rows` tokens where the host sees the choices.
uint64_t all_resident_scratch_bytes(const Config& config, int64_t rows);

/// Groups a layer's assignments by expert: for each distinct expert, ascending id, the assignments (row * top_k + rank)
/// ascending.
struct AssignmentGroups {
  std::vector<ExpertId> experts;
  std::vector<int32_t> begin;  ///< [experts.size() + 1] into order
  std::vector<int32_t> order;  ///< [tokens * top_k]
  std::span<const int32_t> of(size_t i) const { return {order.data() + begin[i], size_t(begin[i + 1] - begin[i])}; }
};
AssignmentGroups group_assignments(const RoutingView& routing, int experts);

}  // namespace ef
