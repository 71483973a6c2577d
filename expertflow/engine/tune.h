// Lets a backend measure the shapes of a model before it is used.
#pragma once
#include <filesystem>

#include "expertflow/base/log.h"
#include "expertflow/model/model.h"

namespace ef {

/// Where measurements of this user's machines are kept: $XDG_CACHE_HOME/expertflow/tuning.json, else under
/// $HOME/.cache; empty if there is neither (then nothing is kept).
std::filesystem::path tuning_file();

/// Device memory that measuring takes for the time, and rows of its ops.
uint64_t tuning_bytes(const Config& config, const Binding& binding);
constexpr int64_t kTuningRows = 128;

/// Matrices of each shape once, and each kind of routed experts. Takes some memory of the backend for the time.
void tune_backend(Backend& backend, Stream& stream, const Model& model, const Experts& experts,
                  const std::filesystem::path& file, const Log& log);

}  // namespace ef
