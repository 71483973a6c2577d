#include "expertflow/backend/cuda_backend.h"

#include <algorithm>

#include "expertflow/backend/cuda/cuda_fast.h"
#include "expertflow/backend/cuda/device/params.h"
#include "expertflow/base/errors.h"

namespace ef {
namespace {

// Goes up when kernels change so that old measurements say nothing.
constexpr int kKernelsVersion = 2;

using cuda::check;
using cuda::CudaStream;

CudaStream& of(Stream& stream) { return static_cast<CudaStream&>(stream); }
cudaStream_t handle(Stream& stream) { return of(stream).handle(); }

void select(int device) {
  const int count = cuda_device_count();
  EF_CHECK(count > 0, ConfigError,
           "device: no CUDA device can be used here (no driver, or none visible); use --device cpu");
  EF_CHECK(device >= 0 && device < count, ConfigError, "device: expected cuda:0 to cuda:{}, found cuda:{}", count - 1,
           device);
  check(cudaSetDevice(device), "set device");
}

// What measurements of speed depend on.
std::string machine(int device, const CudaOptions& options) {
  select(device);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "read the device's properties");
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "read the driver's version");
  return fmt::format("{}, {} multiprocessors, driver {}, kernels {}, activations {}", properties.name,
                     properties.multiProcessorCount, driver, kKernelsVersion, options.round_activations ? "q8" : "f32");
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, const CudaOptions& options)
      : device_(device),
        name_(fmt::format("cuda:{}", device)),
        invariant_(options.batch_invariant),
        fast_(options.round_activations, machine(device, options)) {
    select(device);
    check(cudaGetDeviceProperties(&properties_, device), "read the device's properties");
    constexpr int kOldest = 75;
    const int capability = properties_.major * 10 + properties_.minor;
    EF_CHECK(capability >= kOldest, ConfigError, "device: {} has compute capability {}.{}, expected 7.5 or newer",
             properties_.name, properties_.major, properties_.minor);
  }

  std::string_view name() const override { return name_; }
  std::string description() const override {
    constexpr double kGiB = double(1 << 30);
    return fmt::format("{} ({}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB)", name_, properties_.name,
                       properties_.major, properties_.minor, properties_.multiProcessorCount,
                       double(properties_.totalGlobalMem) / kGiB);
  }
  bool memory_is_host() const override { return false; }

  bool supports(Op op, Format format) const override { return op_takes(op, format); }

  Buffer allocate_apart(uint64_t bytes) override {
    use();
    // The driver's arithmetic on absurd sizes is not to be relied on.
    cudaError_t error = bytes > properties_.totalGlobalMem ? cudaErrorMemoryAllocation : cudaSuccess;
    void* data = nullptr;
    if (error == cudaSuccess) error = cudaMalloc(&data, std::max<uint64_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total), "read free memory");
      fail<DeviceError>("{}: cannot allocate {} bytes of device memory: {} of {} are free", name_, bytes, free, total);
    }
    check(error, "allocate device memory");
    return Buffer(this, static_cast<std::byte*>(data), bytes);
  }
  void release(std::byte* data, uint64_t) noexcept override {
    // An error of earlier work comes back here as well; its op's stream reports it.
    (void)cudaSetDevice(device_);
    (void)cudaFree(data);
  }

  std::shared_ptr<std::byte> allocate_host(uint64_t bytes) override {
    use();
    void* data = nullptr;
    check(cudaMallocHost(&data, std::max<uint64_t>(bytes, 1)), "allocate page-locked memory");
    return {static_cast<std::byte*>(data), [](std::byte* p) { (void)cudaFreeHost(p); }};
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(*this, device_); }
  void copy_to_device(void* device, const void* host, uint64_t bytes, Stream& stream) override {
    use();
    of(stream).copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, uint64_t bytes, Stream& stream) override {
    use();
    of(stream).copy_to_host(host, device, bytes);
  }

  void embed(Stream& s, const MatrixView& table, const TokenId* ids, int64_t n, float scale, float* out) override {
    use();
    cuda::embed(of(s), table, ids, n, scale, out);
  }
  void norm(Stream& s, const NormArgs& a) override { use(), cuda::norm(of(s), a); }
  void linear(Stream& s, const LinearArgs& a) override {
    use();
    if (invariant_)
      cuda::linear(of(s), a);
    else
      fast_.linear(of(s), a);
  }
  void head_linear(Stream& s, const HeadLinearArgs& a) override { use(), cuda::head_linear(of(s), a); }
  void rope(Stream& s, const RopeArgs& a) override { use(), cuda::rope(of(s), a); }
  void store_kv(Stream& s, const StoreKvArgs& a) override { use(), cuda::store_kv(of(s), a); }
  void attention(Stream& s, const AttentionArgs& a) override { use(), cuda::attention(of(s), a); }
  void route(Stream& s, const RouterArgs& a) override { use(), cuda::route(of(s), a); }
  void activation(Stream& s, const ActivationArgs& a) override { use(), cuda::activation(of(s), a); }
  void experts(Stream& s, const ExpertsArgs& a) override { use(), cuda::experts(of(s), a); }
  void combine(Stream& s, const CombineArgs& a) override {
    use();
    check(cuda::combine(a.expert_out, a.weights, a.rows, a.hidden, a.top_k, a.out, handle(s)), "combine");
  }
  void add_scaled(Stream& s, float* x, const float* y, float factor, int64_t n) override {
    use();
    check(cuda::add_scaled(x, y, factor, n, handle(s)), "add_scaled");
  }
  void gated_add(Stream& s, float* x, const float* y, const float* gate, int64_t rows, int64_t width) override {
    use();
    check(cuda::gated_add(x, y, gate, rows, width, handle(s)), "gated_add");
  }
  void scale(Stream& s, float* x, float factor, int64_t n) override {
    use();
    check(cuda::scale(x, factor, n, handle(s)), "scale");
  }
  void clamp(Stream& s, float* x, float low, float high, int64_t n) override {
    use();
    check(cuda::clamp(x, low, high, n, handle(s)), "clamp");
  }
  void copy_2d(Stream& s, float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t width,
               int64_t rows) override {
    use();
    check(cuda::copy_2d(dst, dst_stride, src, src_stride, width, rows, handle(s)), "copy_2d");
  }

  int most_top() const override { return cuda::kMostTop; }
  void top(Stream& s, const TopArgs& a) override { use(), cuda::top(of(s), a); }

  void norm_linear(Stream& s, const NormLinearArgs& a) override {
    if (invariant_) return Backend::norm_linear(s, a);
    use(), fast_.norm_linear(of(s), a);
  }
  void linear_add(Stream& s, const LinearAddArgs& a) override {
    if (invariant_) return Backend::linear_add(s, a);
    use(), fast_.linear_add(of(s), a);
  }
  void gated_linear(Stream& s, const GatedLinearArgs& a) override {
    if (invariant_) return Backend::gated_linear(s, a);
    use(), fast_.gated_linear(of(s), a);
  }
  void norm_route(Stream& s, const NormRouteArgs& a) override {
    if (invariant_) return Backend::norm_route(s, a);
    use(), fast_.norm_route(of(s), a);
  }
  void attend(Stream& s, const AttendArgs& a) override {
    if (invariant_) return Backend::attend(s, a);
    use(), fast_.attend(of(s), a);
  }
  bool routes_on_device(const ExpertView&) const override { return !invariant_; }
  Buffer expert_table(std::span<const ExpertView> experts, Stream& s) override {
    use();
    return cuda::expert_table(*this, experts, of(s));
  }
  void routed_experts(Stream& s, const RoutedExpertsArgs& a) override { use(), fast_.routed_experts(of(s), a); }
  int64_t most_layer_rows() const override { return invariant_ ? 0 : 1; }
  bool takes_layers(std::span<const LayerArgs> all) const override { return !invariant_ && fast_.takes_layers(all); }
  void layers(Stream& s, std::span<const LayerArgs> all) override {
    if (!takes_layers(all)) return Backend::layers(s, all);
    use(), fast_.layers(of(s), all);
  }
  int tune(Stream& s, std::span<const LinearArgs> products, std::span<const RoutedExpertsArgs> routed,
           const std::filesystem::path& file) override {
    if (invariant_) return 0;
    use();
    return fast_.tune(of(s), products, routed, file);
  }

 private:
  // The current device belongs to the calling thread, which may be another one than before.
  void use() const { check(cudaSetDevice(device_), "set device"); }

  int device_;
  std::string name_;
  bool invariant_;
  cuda::Fast fast_;
  cudaDeviceProp properties_{};
};

}  // namespace

bool built_with_cuda() { return true; }

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

CudaMemory cuda_memory(int device) {
  select(device);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "read free memory");
  return {free, total};
}

std::unique_ptr<Backend> make_cuda_backend(int device, const CudaOptions& options) {
  return std::make_unique<CudaBackend>(device, options);
}

uint64_t cuda_stream_bytes() { return cuda::kStreamBytes; }
uint64_t cuda_table_bytes(int experts) { return uint64_t(experts) * sizeof(cuda::ExpertEntry); }

}  // namespace ef
