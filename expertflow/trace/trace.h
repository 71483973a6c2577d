// A routing trace: what a run's routers saw and chose, layer by layer, and how long each layer took. Recorded once, it
// lets policies, predictors and distances be judged again and again without the model (replay/), and predictors be
// trained. docs/traces.md describes the file.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "expertflow/base/ids.h"

namespace ef {

inline constexpr uint32_t kTraceVersion = 1;

/// What holds for the whole trace.
struct TraceHeader {
  struct Layer {
    int experts = 0;          ///< 0: dense
    uint64_t slot_bytes = 0;  ///< of one expert in the fast tier
    bool operator==(const Layer&) const = default;
  };
  std::string model;        ///< for people
  std::string fingerprint;  ///< what tells this model from others; predictors are refused for another one
  int hidden = 0;
  int top_k = 0;       ///< experts chosen per row and layer
  int candidates = 0;  ///< most probable experts recorded per row and layer: 2 * top_k, or all if there are fewer
  bool hidden_states = false;  ///< whether each sparse layer's MoE input is recorded
  std::vector<Layer> layers;   ///< by LayerId
  bool operator==(const TraceHeader&) const = default;
};

enum class TracePhase : uint8_t { kPrefill, kDecode, kMixed };

struct TraceRow {
  uint64_t request = 0;  ///< rows of one sequence carry the same number
  TokenId token = 0;
  int32_t position = 0;
  bool operator==(const TraceRow&) const = default;
};

/// One layer of one step. Of a dense layer only the times.
struct TraceLayer {
  uint64_t compute_ns = 0;              ///< from the layer's begin to its end, less stall_ns
  uint64_t stall_ns = 0;                ///< waited for experts
  std::vector<uint16_t> candidates;     ///< [rows, header.candidates] expert ids, most probable first
  std::vector<uint16_t> probabilities;  ///< the same shape: the router's probability * 65535, rounded
  std::vector<uint16_t> chosen;         ///< [rows, top_k] expert ids in rank order
  std::vector<uint16_t> x;              ///< [rows, hidden] MoE input as IEEE half bits; empty unless recorded
  bool operator==(const TraceLayer&) const = default;
};

/// One forward call.
struct TraceStep {
  uint64_t step = 0;  ///< ascending within a trace
  TracePhase phase = TracePhase::kDecode;
  std::vector<TraceRow> rows;
  std::vector<TraceLayer> layers;  ///< by LayerId, as many as the header has
  bool operator==(const TraceStep&) const = default;
};

inline float trace_probability(uint16_t stored) { return float(stored) / 65535.f; }
uint16_t stored_probability(float probability);  ///< clamped to 0..1; NaN: 0

/// The largest probabilities of a layer, [rows, experts] -> candidates and probabilities of `layer`; ties go to the
/// lower id.
void set_candidates(const TraceHeader& header, std::span<const float> probabilities, int64_t rows, TraceLayer& layer);

/// The distinct experts that a layer asked for, ascending, and how many rows chose each.
struct TraceEvent {
  std::vector<ExpertId> experts;
  std::vector<int32_t> rows;
};
TraceEvent trace_event(const TraceLayer& layer);

}  // namespace ef
