// The CPU backend's object and the op implementations that are long enough for files of their own.
#pragma once
#include <vector>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/backend/cpu/kernels.h"

namespace ef::cpu {

/// Per-worker scratch floats that only grow; contents are not kept from one op to the next.
class Scratch {
 public:
  explicit Scratch(int workers) : buffers_(size_t(workers)) {}
  /// Called by the worker itself.
  float* floats(int worker, int64_t n) {
    auto& buffer = buffers_[size_t(worker)];
    if (int64_t(buffer.size()) < n) buffer.resize(size_t(n));
    return buffer.data();
  }
  /// One buffer seen by all workers; called before they start.
  float* shared(int64_t n) {
    if (int64_t(shared_.size()) < n) shared_.resize(size_t(n));
    return shared_.data();
  }

 private:
  std::vector<std::vector<float>> buffers_;
  std::vector<float> shared_;
};

/// What an op needs: loops of the chosen instruction set, threads, scratch.
struct Context {
  const Kernels& kernels;
  ThreadPool& pool;
  Scratch& scratch;
};

/// Rows of activations by pointer, so that gathered, strided and plain rows are one case.
struct RowPointers {
  const float* const* x = nullptr;
  float* const* out = nullptr;
  int64_t rows = 0;
};

/// Floats of scratch that matmul_rows needs for w.
int64_t matmul_scratch(const MatrixView& w);
/// out[r][out_begin + i] = x[r] * w[begin + i]^T + bias[begin + i] for i in [0, end - begin); runs on the calling
/// thread.
void matmul_rows(const Kernels& kernels, const MatrixView& w, int64_t begin, int64_t end, const float* bias,
                 const RowPointers& rows, int64_t out_begin, float* scratch);
/// Rows of w that one task should take: enough bytes to be worth a task, enough tasks for the threads.
int64_t matmul_grain(const MatrixView& w, int64_t n, int64_t rows, int threads);

void linear(const Context&, const LinearArgs&);
void head_linear(const Context&, const HeadLinearArgs&);
void experts(const Context&, const ExpertsArgs&);
/// Most floats that experts() holds between its two halves.
int64_t experts_scratch_floats();
void activate(const Kernels&, const Activation&, const float* gate, const float* up, float* out, int64_t n);

void store_kv(const Context&, const StoreKvArgs&);
void attention(const Context&, const AttentionArgs&);
/// Most floats of scratch that a thread takes in attention() over `context` positions.
int64_t attention_scratch_floats(int heads, int kv_heads, int64_t context);

void norm(const Context&, const NormArgs&);
void rope(const Context&, const RopeArgs&);
void route(const Context&, const RouterArgs&);

}  // namespace ef::cpu
