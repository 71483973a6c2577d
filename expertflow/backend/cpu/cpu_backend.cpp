#include "expertflow/backend/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "expertflow/backend/cpu/cpu_ops.h"
#include "expertflow/base/errors.h"

namespace ef {
namespace {

using cpu::Context;

// Large buffers are mappings of their own: freed memory goes back at once, and huge pages spare address translation.
constexpr uint64_t kMapFrom = 1 << 20;
constexpr uint64_t kAlign = 64;
// Elements of a simple loop that are worth a task.
constexpr int64_t kSimpleGrain = 64 << 10;

const cpu::Kernels& kernels_for([[maybe_unused]] Isa isa) {
#ifdef EF_CPU_X86
  if (isa == Isa::kAvx512Bf16) return cpu::avx512_bf16_kernels();
  if (isa == Isa::kAvx512Vnni) return cpu::avx512_vnni_kernels();
  if (isa == Isa::kAvx512) return cpu::avx512_kernels();
  if (isa == Isa::kAvx2Vnni) return cpu::avx2_vnni_kernels();
  if (isa == Isa::kAvx2) return cpu::avx2_kernels();
#endif
  EF_DCHECK(isa == Isa::kReference);
  return cpu::reference_kernels();
}

// Ops are finished when they return, so there is nothing to wait for.
class CpuStream final : public Stream {
 public:
  void synchronize() override {}
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(ThreadPool& pool, Isa isa, Activations activations)
      : pool_(pool),
        isa_(isa),
        activations_(activations),
        scratch_(pool.size()),
        context_{kernels_for(isa), pool_, scratch_} {}

  std::string_view name() const override { return "cpu"; }
  MatrixLayout weight_layout(Op op, Format format) const override {
    const bool product = (op == Op::kLinear || op == Op::kExperts) && activations_ == Activations::kQ8;
    return product && context_.kernels.tiles && context_.kernels.tiles[int(format)].fn ? MatrixLayout::kTiles16
                                                                                       : MatrixLayout::kRows;
  }
  std::string description() const override {
    return fmt::format("cpu ({}, {} thread{})", isa_name(isa_), pool_.size(), pool_.size() == 1 ? "" : "s");
  }

  bool memory_is_host() const override { return true; }

  bool supports(Op op, Format format) const override { return op_takes(op, format); }

  Buffer allocate_apart(uint64_t bytes) override {
    void* data = nullptr;
    if (bytes >= kMapFrom) {
      data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED) data = nullptr;
      if (data) madvise(data, bytes, MADV_HUGEPAGE);
    } else {
      data = std::aligned_alloc(kAlign, (std::max<uint64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign);
    }
    EF_CHECK(data, DeviceError, "cpu: cannot allocate {} bytes of memory", bytes);
    return Buffer(this, static_cast<std::byte*>(data), bytes);
  }
  void release(std::byte* data, uint64_t size) noexcept override {
    if (size >= kMapFrom)
      munmap(data, size);
    else
      std::free(data);
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
  void copy_to_device(void* device, const void* host, uint64_t bytes, Stream&) override { copy(device, host, bytes); }
  void copy_to_host(void* host, const void* device, uint64_t bytes, Stream&) override { copy(host, device, bytes); }

  void embed(Stream&, const MatrixView& table, const TokenId* ids, int64_t n, float scale, float* out) override {
    constexpr int64_t kRowsPerTask = 16;
    pool_.parallel_for(n, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        EF_DCHECK(ids[i] >= 0 && ids[i] < table.rows);
        float* row = out + i * table.cols;
        dequantize_row(table, ids[i], row);
        if (scale != 1.f)
          for (int64_t k = 0; k < table.cols; ++k) row[k] *= scale;
      }
    });
  }
  void norm(Stream&, const NormArgs& args) override { cpu::norm(context_, args); }
  void linear(Stream&, const LinearArgs& args) override { cpu::linear(context_, args); }
  void head_linear(Stream&, const HeadLinearArgs& args) override { cpu::head_linear(context_, args); }
  void rope(Stream&, const RopeArgs& args) override { cpu::rope(context_, args); }
  void store_kv(Stream&, const StoreKvArgs& args) override { cpu::store_kv(context_, args); }
  void attention(Stream&, const AttentionArgs& args) override { cpu::attention(context_, args); }
  void route(Stream&, const RouterArgs& args) override { cpu::route(context_, args); }
  void experts(Stream&, const ExpertsArgs& args) override { cpu::experts(context_, args); }

  void activation(Stream&, const ActivationArgs& a) override {
    simple(a.n, [&](int64_t begin, int64_t end) {
      cpu::activate(context_.kernels, a.activation, a.gate + begin, a.up + begin, a.out + begin, end - begin);
    });
  }

  void combine(Stream&, const CombineArgs& a) override {
    constexpr int64_t kRowsPerTask = 4;
    pool_.parallel_for(a.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        float* out = a.out + row * a.hidden;
        std::memset(out, 0, size_t(a.hidden) * sizeof(float));
        for (int64_t rank = 0; rank < a.top_k; ++rank) {
          const float weight = a.weights[row * a.top_k + rank];
          const float* in = a.expert_out + (row * a.top_k + rank) * a.hidden;
          for (int64_t i = 0; i < a.hidden; ++i) out[i] += weight * in[i];
        }
      }
    });
  }

  void add_scaled(Stream&, float* x, const float* y, float scale, int64_t n) override {
    simple(n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x[i] += scale * y[i];
    });
  }
  void gated_add(Stream&, float* x, const float* y, const float* gate, int64_t rows, int64_t width) override {
    constexpr int64_t kRowsPerTask = 16;
    pool_.parallel_for(rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const float factor = 1.f / (1.f + std::exp(-gate[r]));
        for (int64_t i = r * width; i < (r + 1) * width; ++i) x[i] += factor * y[i];
      }
    });
  }
  void scale(Stream&, float* x, float factor, int64_t n) override {
    simple(n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x[i] *= factor;
    });
  }
  void clamp(Stream&, float* x, float low, float high, int64_t n) override {
    // Written so that a NaN stays.
    simple(n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x[i] = x[i] < low ? low : x[i] > high ? high : x[i];
    });
  }
  void copy_2d(Stream&, float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t width,
               int64_t rows) override {
    constexpr int64_t kRowsPerTask = 64;
    pool_.parallel_for(rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        std::copy_n(src + r * src_stride, std::max<int64_t>(width, 0), dst + r * dst_stride);
    });
  }

 private:
  static void copy(void* to, const void* from, uint64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  template <class F>
  void simple(int64_t n, const F& body) {
    pool_.parallel_for(n, kSimpleGrain, [&](int64_t begin, int64_t end, int) { body(begin, end); });
  }

  ThreadPool& pool_;
  Isa isa_;
  Activations activations_;
  cpu::Scratch scratch_;
  Context context_;
};

}  // namespace

uint64_t cpu_scratch_bytes(int threads, int heads, int kv_heads, int64_t context) {
  const int64_t floats =
      threads * cpu::attention_scratch_floats(heads, kv_heads, context) + cpu::experts_scratch_floats();
  return uint64_t(floats) * sizeof(float) + cpu::quantized_scratch_bytes();
}

Activations parse_activations(std::string_view name) {
  if (name == "q8") return Activations::kQ8;
  if (name == "f32") return Activations::kF32;
  fail<ConfigError>("activations: expected q8 or f32, found \"{}\"", name);
}

std::unique_ptr<Backend> make_cpu_backend(ThreadPool& pool, Isa isa, Activations activations) {
  return std::make_unique<CpuBackend>(pool, isa, activations);
}

}  // namespace ef
