// Writes what a run's routers see and choose into a trace (trace/trace.h), step by step as it happens.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "expertflow/base/clock.h"
#include "expertflow/engine/model_files.h"
#include "expertflow/model/model.h"
#include "expertflow/trace/trace_file.h"

namespace ef {

/// What a trace of this model says first. name: for people.
TraceHeader trace_header(const ModelFiles& files, const std::string& name, bool hidden_states);

class TraceRecorder final : public StepObserver {
 public:
  /// stall_seconds: that compute has waited for experts since some time. ConfigError or DeviceError if the file cannot
  /// be made. All arguments must outlive it.
  TraceRecorder(const std::filesystem::path& path, const ModelFiles& files, const std::string& name, bool hidden_states,
                const Clock& clock, std::function<double()> stall_seconds);

  void on_step(std::span<const TokenId> tokens, std::span<const int32_t> sequences,
               std::span<const int32_t> positions) override;
  void on_layer(LayerId layer) override;
  void on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) override;
  void on_step_end() override;
  /// The file appears. A step that failed is not in it.
  void close() { writer_.close(); }
  uint64_t steps() const { return writer_.steps(); }
  uint64_t rows() const { return writer_.rows(); }

 private:
  void end_layer();

  const Config& config_;
  const Clock& clock_;
  std::function<double()> stall_seconds_;
  TraceWriter writer_;
  TraceStep step_;
  LayerId layer_ = -1;  // under way
  Duration layer_begin_{0};
  double layer_stall_ = 0;
  uint64_t requests_ = 0;
  std::map<int32_t, uint64_t> request_of_;  // by sequence; a new one at position 0
  std::vector<float> probabilities_;
};

}  // namespace ef
