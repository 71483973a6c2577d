// Which model is this, as far as its routing goes: what was learned about one (profiles, predictors, traces) is not
// used for another.
#pragma once
#include <string>

#include "expertflow/engine/model_files.h"

namespace ef {

/// 16 hex digits from the architecture, the shapes and the first row of every router. The same for a model in other
/// files and formats as long as its routers have the same numbers; a fine-tuned router gives another one. Reads some
/// kilobytes; ModelError or DeviceError if that fails.
std::string model_fingerprint(const ModelFiles& files);

}  // namespace ef
