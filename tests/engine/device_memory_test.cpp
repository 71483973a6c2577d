// The model over a backend whose memory is not the host's: the same logits, and no device pointer followed on the host.
#include <gtest/gtest.h>

#include "tests/engine/guarded_backend.h"
#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

RigOptions guarded() {
  RigOptions o;
  o.make = [](ThreadPool& pool) { return std::make_unique<GuardedBackend>(make_cpu_backend(pool, Isa::kReference)); };
  return o;
}
RigOptions plain() {
  RigOptions o;
  o.isa = Isa::kReference;
  return o;
}

TEST(DeviceMemory, NoPointerOfADeviceIsFollowedOnTheHost) {
  // Grouped queries; sinks, windows and biases; latent attention with a shared expert.
  for (const char* fixture : {"qwen3_moe", "gpt_oss", "deepseek_v2"}) {
    const auto prompt = goldens(fixture).front().ids;
    ModelRig device(fixture, guarded()), host(fixture, plain());
    EXPECT_EQ(first_difference(device.logits(prompt, 5), host.logits(prompt, 5)), "") << fixture;
  }
}

TEST(DeviceMemory, ObserversSeeTheSameNumbers) {
  class Recorder final : public StepObserver {
   public:
    void on_routing(LayerId, const float* x, const float* logits, const RoutingView& routing) override {
      ids.insert(ids.end(), routing.ids, routing.ids + routing.tokens * routing.top_k);
      seen.insert(seen.end(), routing.weights, routing.weights + routing.tokens * routing.top_k);
      seen.push_back(x[0]), seen.push_back(logits[0]);
    }
    std::vector<int32_t> ids;
    std::vector<float> seen;
  };
  const auto prompt = goldens("qwen3_moe").front().ids;
  ModelRig device("qwen3_moe", guarded()), host("qwen3_moe", plain());
  Recorder on_device, on_host;
  device.observer = &on_device, host.observer = &on_host;
  device.logits(prompt, prompt.size()), host.logits(prompt, prompt.size());
  EXPECT_FALSE(on_host.ids.empty());
  EXPECT_EQ(on_device.ids, on_host.ids);
  EXPECT_EQ(first_difference(on_device.seen, on_host.seen), "");
}

}  // namespace
}  // namespace ef::testing
