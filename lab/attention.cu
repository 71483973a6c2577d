// attend() against the reference composition (norm, rope, store_kv, attention): the same numbers, and how fast.
//   nvcc -O3 -std=c++17 -arch=sm_90 --extended-lambda -t 0 -I. lab/attention.cu expertflow/backend/cuda/device/*.cu
//        -o attention_lab        (attend*, attention, elementwise and launch.cu are enough)
//   attention_lab [--check]   checks and times; --check: checks on tiny shapes alone
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "expertflow/backend/cuda/device/fast.h"
#include "expertflow/backend/cuda/device/mma.cuh"

namespace {

using namespace ef::cuda;

constexpr double kBytesPerSecond = 4611e9, kFlopsPerSecond = 790e12;  // an H200

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

__device__ float random_number(uint64_t i, uint32_t seed) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
  float sum = 0;  // of four uniform numbers: nearly normal
  for (int k = 0; k < 4; ++k) {
    x ^= x >> 31, x *= 0x94d049bb133111ebull, x ^= x >> 29;
    sum += float(x >> 40) * 0x1p-24f - 0.5f;
  }
  return sum * 1.7320508f;
}
template <class T>
__device__ T as_type(float v);
template <>
__device__ float as_type<float>(float v) {
  return v;
}
template <>
__device__ __half as_type<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __nv_bfloat16 as_type<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <class T>
__global__ void fill_kernel(T* to, int64_t n, uint32_t seed) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    to[i] = as_type<T>(random_number(uint64_t(i), seed));
}
template <class T>
void fill(void* to, int64_t n, uint32_t seed) {
  const unsigned blocks = unsigned(std::clamp<int64_t>(n / 256, 1, 4096));
  must(launch(fill_kernel<T>, {dim3(blocks), dim3(256)}, cudaStream_t(nullptr), static_cast<T*>(to), n, seed), "fill");
}

// Device memory that ends with its owner.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    for (void* p : all_) cudaFree(p);
  }
  template <class T>
  T* allocate(int64_t n) {
    void* p = nullptr;
    must(cudaMalloc(&p, size_t(std::max<int64_t>(n, 1)) * sizeof(T)), "cudaMalloc");
    all_.push_back(p);
    return static_cast<T*>(p);
  }
  template <class T>
  T* upload(const std::vector<T>& v) {
    T* p = allocate<T>(int64_t(v.size()));
    must(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
    return p;
  }
  float* numbers(int64_t n, uint32_t seed) {
    float* x = allocate<float>(n);
    fill<float>(x, n, seed);
    return x;
  }

 private:
  std::vector<void*> all_;
};

struct Case {
  const char* name = "";
  int type = 1, heads = 32, kv_heads = 4, k_dim = 128, v_dim = 128, block_tokens = 32, window = 0;
  bool sinks = false, latent = false;
  int batch = 1, depth = 0, rows = 1;  // sequences; rows of each, after `depth` cached positions
  bool settled = true;
};

// A call's memory. Several caches, used in turn, so that nothing is found in the L2 cache.
class Problem {
 public:
  Problem(const Case& shape, int copies) : c_(shape), rows_(int64_t(c_.batch) * c_.rows) {
    const int length = c_.depth + c_.rows, blocks = (length + c_.block_tokens - 1) / c_.block_tokens;
    std::vector<int32_t> table(size_t(c_.batch) * size_t(blocks)), position, sequence;
    for (size_t i = 0; i < table.size(); ++i) table[i] = int32_t(i);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    std::vector<float> cos, sin;
    for (int s = 0; s < c_.batch; ++s)
      for (int i = 0; i < c_.rows; ++i) {
        position.push_back(c_.depth + i), sequence.push_back(s);
        for (int d = 0; d < pairs(); ++d) {
          const double angle = double(c_.depth + i) * std::pow(1e6, -double(d) / pairs());
          cos.push_back(float(std::cos(angle))), sin.push_back(float(std::sin(angle)));
        }
      }
    const int64_t tokens = int64_t(table.size()) * c_.block_tokens;
    const int64_t k_elements = tokens * c_.kv_heads * c_.k_dim,
                  v_elements = c_.latent ? 0 : tokens * c_.kv_heads * c_.v_dim;
    const int64_t bytes = c_.type == 0 ? 4 : 2;
    for (int i = 0; i < copies; ++i) {
      uint8_t *k = memory_.allocate<uint8_t>(k_elements * bytes), *v = memory_.allocate<uint8_t>(v_elements * bytes);
      fill_cache(k, k_elements, uint32_t(2 * i)), fill_cache(v, v_elements, uint32_t(2 * i + 1));
      copies_.push_back({k, v, memory_.allocate<float>(q_floats())});
    }
    p_.kv.type = c_.type;
    p_.kv.block_tokens = c_.block_tokens, p_.kv.kv_heads = c_.kv_heads, p_.kv.k_dim = c_.k_dim, p_.kv.v_dim = c_.v_dim;
    p_.kv.rows = rows_;
    p_.kv.position = memory_.upload(position), p_.kv.sequence = memory_.upload(sequence),
    p_.kv.block_table = memory_.upload(table);
    p_.kv.max_blocks = blocks;
    p_.heads = c_.heads, p_.window = c_.window, p_.scale = 1.f / std::sqrt(float(c_.k_dim));
    if (c_.sinks) p_.sinks = memory_.numbers(c_.heads, 91);
    p_.k = memory_.allocate<float>(k_floats());
    given_q_ = memory_.numbers(q_floats(), 92), given_k_ = memory_.numbers(k_floats(), 93);
    if (!c_.latent) {
      p_.v = memory_.numbers(rows_ * c_.kv_heads * c_.v_dim, 94);
      p_.q_norm = memory_.numbers(c_.k_dim, 95), p_.k_norm = memory_.numbers(c_.k_dim, 96), p_.norm_eps = 1e-6f;
      p_.rotary = c_.k_dim, p_.cos = memory_.upload(cos), p_.sin = memory_.upload(sin);
    }
    p_.out = memory_.allocate<float>(out_floats());
    p_.reach = length, p_.one_row_each = c_.rows == 1, p_.settled = c_.settled;
    use(0);
    p_.scratch = memory_.allocate<uint8_t>(int64_t(attend_scratch(p_)));
    p_.arrived = memory_.allocate<unsigned>(attend_counters(p_));
    must(cudaMemset(p_.arrived, 0, size_t(attend_counters(p_)) * sizeof(unsigned)), "memset");
    // The reference's: rows that a scratch of 128 MiB serves at once.
    wave_ = std::clamp<int64_t>((32 << 20) / attention_scratch_floats(1, c_.heads, c_.v_dim, length), 1, rows_);
    reference_scratch_ = memory_.allocate<float>(attention_scratch_floats(wave_, c_.heads, c_.v_dim, length));
  }

  void use(int copy) {
    const Copy& c = copies_[size_t(copy)];
    p_.kv.k = c.k, p_.kv.v = c_.latent ? nullptr : c.v, p_.q = c.q;
  }
  // Calls leave other queries and keys than they were given.
  void reset(cudaStream_t stream) {
    for (const Copy& c : copies_)
      must(cudaMemcpyAsync(c.q, given_q_, size_t(q_floats()) * 4, cudaMemcpyDeviceToDevice, stream), "reset");
    must(cudaMemcpyAsync(p_.k, given_k_, size_t(k_floats()) * 4, cudaMemcpyDeviceToDevice, stream), "reset");
  }
  void fast(cudaStream_t stream) { must(attend(p_, stream), "attend"); }
  void reference(cudaStream_t stream) {
    if (p_.q_norm) {
      must(norm({false, rows_ * c_.heads, c_.k_dim, p_.norm_eps, p_.q_norm, nullptr, p_.q, p_.q}, stream), "norm");
      must(norm({false, rows_ * c_.kv_heads, c_.k_dim, p_.norm_eps, p_.k_norm, nullptr, p_.k, p_.k}, stream), "norm");
    }
    if (p_.rotary) {
      rotate(p_.q, c_.heads, stream), rotate(p_.k, c_.kv_heads, stream);
    }
    must(store_kv(p_.kv, p_.k, p_.v, stream), "store_kv");
    AttentionParams a;
    a.kv = p_.kv;
    a.heads = c_.heads, a.window = c_.window, a.scale = p_.scale, a.sinks = p_.sinks, a.reach = p_.reach;
    a.scratch = reference_scratch_;
    for (int64_t row = 0; row < rows_; row += wave_) {
      a.kv.rows = std::min(wave_, rows_ - row);
      a.kv.position = p_.kv.position + row, a.kv.sequence = p_.kv.sequence + row;
      a.q = p_.q + row * c_.heads * c_.k_dim, a.out = p_.out + row * c_.heads * c_.v_dim;
      must(attention(a, stream), "attention");
    }
  }
  // What the last call gave. The memory is poisoned for the next.
  std::vector<float> take() {
    std::vector<float> out(static_cast<size_t>(out_floats()));
    must(cudaDeviceSynchronize(), "synchronize");
    must(cudaMemcpy(out.data(), p_.out, out.size() * 4, cudaMemcpyDeviceToHost), "copy");
    must(cudaMemset(p_.out, 0xff, out.size() * 4), "poison");
    return out;
  }
  double bytes() const {  // of keys and values that have to be read
    return visible() * c_.kv_heads * (c_.k_dim + (c_.latent ? 0 : c_.v_dim)) * (c_.type == 0 ? 4 : 2);
  }
  double flops() const { return 2. * visible() * c_.heads * (c_.k_dim + c_.v_dim); }

 private:
  struct Copy {
    uint8_t *k, *v;
    float* q;
  };
  int pairs() const { return c_.latent ? 0 : c_.k_dim / 2; }
  int64_t q_floats() const { return rows_ * c_.heads * c_.k_dim; }
  int64_t k_floats() const { return rows_ * c_.kv_heads * c_.k_dim; }
  int64_t out_floats() const { return rows_ * c_.heads * c_.v_dim; }
  // Pairs of a row and a position that it sees.
  double visible() const {
    double sum = 0;
    for (int i = 0; i < c_.rows; ++i) {
      const int all = c_.depth + i + 1;
      sum += c_.window > 0 ? std::min(all, c_.window) : all;
    }
    return sum * c_.batch;
  }
  void fill_cache(uint8_t* to, int64_t n, uint32_t seed) const {
    if (c_.type == 0) fill<float>(to, n, seed);
    if (c_.type == 1) fill<__half>(to, n, seed);
    if (c_.type == 2) fill<__nv_bfloat16>(to, n, seed);
  }
  void rotate(float* x, int heads, cudaStream_t stream) {
    RopeParams r;
    r.rows = rows_, r.heads = heads, r.head_dim = c_.k_dim, r.rotary = p_.rotary;
    r.row_stride = int64_t(heads) * c_.k_dim;
    r.cos = p_.cos, r.sin = p_.sin, r.x = x;
    must(rope(r, stream), "rope");
  }

  Case c_;
  Memory memory_;
  int64_t rows_, wave_ = 0;
  std::vector<Copy> copies_;
  AttendParams p_;
  float *given_q_ = nullptr, *given_k_ = nullptr, *reference_scratch_ = nullptr;
};

// |fast - reference| / |reference|
double error_of(Problem& problem) {
  problem.use(0);
  problem.take();
  problem.reset(nullptr), problem.reference(nullptr);
  const std::vector<float> want = problem.take();
  problem.reset(nullptr), problem.fast(nullptr);
  const std::vector<float> got = problem.take();
  double difference = 0, all = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = double(got[i]) - double(want[i]);
    difference += d * d, all += double(want[i]) * double(want[i]);
  }
  return std::sqrt(difference / all);
}

// Microseconds a call: the median of some runs over `copies` caches, launched as one graph.
template <class F>
double microseconds(Problem& problem, int copies, int runs, F call) {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  must(cudaEventCreate(&begin), "event"), must(cudaEventCreate(&end), "event");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < copies; ++i) problem.use(i), call(stream);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  std::vector<double> times;
  for (int run = 0; run < 1 + runs; ++run) {
    problem.reset(stream);
    must(cudaEventRecord(begin, stream), "event");
    must(cudaGraphLaunch(exec, stream), "graph");
    must(cudaEventRecord(end, stream), "event");
    must(cudaEventSynchronize(end), "run");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "time");
    if (run > 0) times.push_back(double(ms) * 1e3 / copies);
  }
  must(cudaGraphExecDestroy(exec), "graph"), must(cudaGraphDestroy(graph), "graph");
  must(cudaEventDestroy(begin), "event"), must(cudaEventDestroy(end), "event");
  must(cudaStreamDestroy(stream), "stream");
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

bool check(const char* name, Case c, double bound) {
  c.name = name;
  Problem problem(c, 1);
  const double error = error_of(problem);
  const bool good = error <= bound;
  std::printf("%-32s |error| %.1e, at most %.1e expected%s\n", name, error, bound, good ? "" : ": WRONG");
  return good;
}

// Decoding keeps what float32 does but for the last digits, and new keys may round to the other side; prefill rounds
// queries and weights to the type of the cache.
bool check_all() {
  bool good = true;
  Case c;
  for (int type : {0, 1, 2}) {
    const double decode = type == 2 ? 1e-4 : 2e-5, prefill = type == 0 ? 2e-6 : type == 1 ? 1e-3 : 8e-3;
    const char* names[3][3] = {{"f32 decode", "f32 prefill", "f32 prefill at depth"},
                               {"f16 decode", "f16 prefill", "f16 prefill at depth"},
                               {"bf16 decode", "bf16 prefill", "bf16 prefill at depth"}};
    c = Case(), c.type = type, c.heads = 8, c.kv_heads = 1, c.batch = 3, c.depth = 200;
    good &= check(names[type][0], c, decode);
    c.batch = 2, c.rows = 60, c.depth = 0;
    good &= check(names[type][1], c, prefill);
    c.depth = 90, c.block_tokens = 16;
    good &= check(names[type][2], c, prefill);
  }
  c = Case(), c.heads = 8, c.kv_heads = 2, c.k_dim = c.v_dim = 64, c.window = 50, c.sinks = true, c.depth = 120;
  good &= check("window and sinks, decode", c, 2e-5);
  c.rows = 70;
  good &= check("window and sinks, prefill", c, 1e-3);
  c = Case(), c.heads = 16, c.kv_heads = 1, c.k_dim = 576, c.v_dim = 512, c.latent = true, c.depth = 70, c.batch = 2;
  good &= check("latent, decode", c, 2e-5);
  return good;
}

void time_decode(Case c, int context, int batch) {
  c.batch = batch, c.depth = context - 1, c.rows = 1;
  const double of_copy = double(context) * batch * c.kv_heads * (c.k_dim + (c.latent ? 0 : c.v_dim)) * 2;
  const int copies = int(std::clamp(256e6 / of_copy, 2., 256.));
  Problem problem(c, copies);
  const double error = error_of(problem);
  const double naive = microseconds(problem, std::min(copies, 16), 2, [&](cudaStream_t s) { problem.reference(s); });
  const double fast = microseconds(problem, copies, 5, [&](cudaStream_t s) { problem.fast(s); });
  c.settled = false;
  Problem unsettled(c, copies);
  const double late = microseconds(unsettled, copies, 5, [&](cudaStream_t s) { unsettled.fast(s); });
  const double bound = problem.bytes() / kBytesPerSecond * 1e6;
  std::printf(
      "%-12s batch %2d, context %5d: reference %8.2f us, fast %7.2f us (not settled %7.2f), %5.0f GB/s, bound %7.2f "
      "us, "
      "error %.0e\n",
      c.name, batch, context, naive, fast, late, problem.bytes() / fast * 1e-3, bound, error);
}

void time_prefill(Case c, int rows, int depth) {
  c.rows = rows, c.depth = depth;
  Problem problem(c, 4);
  const double error = error_of(problem);
  const double naive = microseconds(problem, 1, 1, [&](cudaStream_t s) { problem.reference(s); });
  const double fast = microseconds(problem, 4, 5, [&](cudaStream_t s) { problem.fast(s); });
  std::printf(
      "%-12s rows %4d, depth %5d: reference %9.1f us, fast %7.1f us, %4.0f TFLOP/s, bound %6.1f us, error %.0e\n",
      c.name, rows, depth, naive, fast, problem.flops() / fast * 1e-6, problem.flops() / kFlopsPerSecond * 1e6, error);
}

}  // namespace

int main(int argc, char** argv) {
  const bool only_check = argc > 1 && std::strcmp(argv[1], "--check") == 0;
  if (!check_all()) return 1;
  if (only_check) return 0;
  Case qwen;
  qwen.name = "32/4 x 128";
  for (int batch : {1, 16})
    for (int context : {128, 512, 2048, 8192, 32768}) time_decode(qwen, context, batch);
  for (int depth : {0, 2048})
    for (int rows : {512, 2048}) time_prefill(qwen, rows, depth);
  time_prefill(qwen, 32, 8192);
  Case latent;
  latent.name = "latent 16";
  latent.heads = 16, latent.kv_heads = 1, latent.k_dim = 576, latent.v_dim = 512, latent.latent = true;
  for (int context : {512, 8192}) time_decode(latent, context, 1);
  latent.name = "latent 128", latent.heads = 128;
  time_decode(latent, 8192, 1);
  return 0;
}
