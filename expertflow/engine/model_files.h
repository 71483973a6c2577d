// A checkpoint opened and understood, before any weight is read: enough for inspect, for budgets and for refusing
// early.
#pragma once
#include <memory>

#include "expertflow/model/arch.h"
#include "expertflow/model/binding.h"
#include "expertflow/weights/checkpoint.h"
#include "expertflow/weights/expert_store.h"

namespace ef {

struct ModelFiles {
  Checkpoint checkpoint;
  const Architecture* arch = nullptr;
  Config config;
  Binding binding;                     ///< experts moved into the store
  std::unique_ptr<ExpertStore> store;  ///< over checkpoint.directory
};

/// Throws ModelError with everything that is wrong or missing. The result does not move: the store refers to its
/// directory.
std::unique_ptr<ModelFiles> open_model(const std::filesystem::path& path);

}  // namespace ef
