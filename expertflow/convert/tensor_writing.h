// Planned tensors into a writer, in bounded memory, with rows converted on all threads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "expertflow/base/thread_pool.h"
#include "expertflow/convert/plan.h"
#include "expertflow/weights/writers.h"

namespace ef {

/// done and total bytes of the result.
using ConvertProgress = std::function<void(uint64_t, uint64_t)>;

/// How far a tensor's numbers moved: square sums over all of them.
struct ConversionError {
  double squared_error = 0, squared_sum = 0;
  int64_t count = 0;
  double rms() const;       ///< root of the mean squared error
  double relative() const;  ///< the same over the root mean square of the numbers; 0 for a tensor of zeros
};

/// Declares and writes all tensors, then finishes the writer. errors: one entry a tensor (null: not measured).
/// ModelError: a number that is not finite would enter a block format, naming the tensor.
void write_tensors(const std::vector<OutTensor>& tensors, CheckpointWriter& writer, ThreadPool& pool,
                   uint64_t buffer_bytes, const ConvertProgress& progress, std::vector<ConversionError>* errors);

uint64_t planned_bytes(const OutTensor& tensor);

/// ConfigError unless `out` does not exist or is an empty folder.
void check_output_folder(const std::filesystem::path& out);

}  // namespace ef
