// The CPU backend's object and the op implementations that are long enough for files of their own.
#pragma once
#include <vector>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/backend/cpu/kernels.h"

namespace ef::cpu {

/// Rows of activations in 8 bits for products with tiles, and the memory behind them, which only grows.
class QuantizedRows {
 public:
  /// Room for n rows of cols elements; what was there before is void.
  void reserve(int64_t n, int64_t cols, const TileFormat& format);
  /// Elements [begin, end) of row i from x (which begins at element `begin`); begin and end are multiples of 32.
  /// Safe for different ranges at once.
  void quantize(const Kernels& kernels, int64_t i, int64_t begin, int64_t end, const float* x);
  const QuantizedRow* rows() const { return rows_.data(); }

 private:
  TileFormat format_;
  std::vector<int8_t> codes_;
  std::vector<float> scales_, sums_;
  std::vector<int32_t> starts_;
  std::vector<QuantizedRow> rows_;
};

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
  /// Activations in 8 bits: 0 and 1 before a product (two formats at most), 2 between the halves of an expert.
  QuantizedRows& quantized(int which) { return quantized_[which]; }

 private:
  QuantizedRows quantized_[3];
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
  const QuantizedRow* quantized = nullptr;  ///< [rows], for weights in tiles
};

/// The tile kernel's wishes if w is in tiles, else null.
const TileFormat* tile_format(const Kernels&, const MatrixView& w);
/// Rows that may be quantised at once, so that the memory for it stays bounded.
int64_t quantized_rows_limit(int64_t cols);
/// Bytes of scratch that quantised rows take at most.
uint64_t quantized_scratch_bytes();

/// Floats of scratch that matmul_rows needs for w.
int64_t matmul_scratch(const MatrixView& w);
/// out[r][out_begin + i] = x[r] * w[begin + i]^T + bias[begin + i] for i in [0, end - begin); runs on the calling
/// thread. In tiles, begin is a multiple of 16, and so is end unless it is w.rows.
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
