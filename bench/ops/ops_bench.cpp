// Matrix products and attention of the CPU backend, per format and instruction set, beside this machine's measured
// memory bandwidth. Rows: 1 is decode (bytes matter), more is prefill (arithmetic matters).
//   bench_ops [--threads N] [--isa NAME] [--format NAME] [--rows 1,512] [--cols 2048] [--megabytes 1024] [--seconds
//   0.3]
//   [--clock wall|cpu]
// On a machine shared with other programs, --clock cpu counts this program's own time (per thread).
#include <fmt/format.h>
#include <time.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"
#include "expertflow/quant/tiles.h"

namespace ef {
namespace {

struct Options {
  int threads = 1;
  std::string isa;
  std::vector<int64_t> rows = {1, 4, 512};
  int64_t cols = 2048;
  double seconds = 0.3;
  uint64_t megabytes = 1024;  // of weights for one row: beyond the caches
  bool cpu_clock = false;
  const FormatInfo* format = nullptr;  // all
};

double read_clock(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Seconds of one call, the best of several: other programs on the machine only ever add time.
template <class F>
double best_time(const Options& options, F&& f) {
  const auto now = [&] {
    return options.cpu_clock ? read_clock(CLOCK_PROCESS_CPUTIME_ID) / options.threads : read_clock(CLOCK_MONOTONIC);
  };
  f();
  double best = 1e30;
  const double end = now() + options.seconds;
  do {
    const double start = now();
    f();
    best = std::min(best, now() - start);
  } while (now() < end);
  return best;
}

// The whole buffer read once by all threads with the widest plain loop: what streaming weights can reach at most.
double read_bandwidth(ThreadPool& pool, const Buffer& memory, const Options& options) {
  const int64_t n = int64_t(memory.size() / 64);
  const auto* data = memory.as<uint64_t>();
  std::vector<uint64_t> sums(size_t(pool.size()) * 8);
  const double time = best_time(options, [&] {
    pool.parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end, int worker) {
      uint64_t s[8] = {};
      for (int64_t i = begin; i < end; ++i)
        for (int lane = 0; lane < 8; ++lane) s[lane] ^= data[i * 8 + lane];
      for (int lane = 0; lane < 8; ++lane) sums[size_t(worker) * 8] += s[lane];
    });
  });
  return double(memory.size()) / time;
}

// Random weights in the format: random blocks repeated, so that making a large matrix takes no time.
void fill_weights(const Buffer& memory, Format format, int64_t cols, MatrixLayout layout = MatrixLayout::kRows) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 16;
  std::vector<float> floats(size_t(kRows * cols));
  for (float& v : floats) v = normal(random);
  std::vector<std::byte> some(size_t(kRows) * row_bytes(format, cols));
  format_info(format).quantize(floats.data(), some.data(), int64_t(floats.size()));
  if (layout == MatrixLayout::kTiles16) {
    const std::vector<std::byte> rows = some;
    tile_matrix(MatrixView{format, kRows, cols, rows.data()}, some.data());
  }
  for (uint64_t at = 0; at < memory.size(); at += some.size())
    std::copy_n(some.begin(), std::min<uint64_t>(some.size(), memory.size() - at), memory.data() + at);
}

void bench_linear(Backend& backend, const Options& options, const FormatInfo& format, double peak) {
  MatrixView w;
  w.format = format.format;
  w.cols = options.cols;
  const uint64_t row = row_bytes(w.format, w.cols);
  Buffer memory = backend.allocate((options.megabytes << 20) / (row * 16) * row * 16);
  w.layout = backend.weight_layout(Op::kLinear, w.format);
  fill_weights(memory, w.format, w.cols, w.layout);
  w.data = memory.data();
  auto stream = backend.make_stream();
  for (int64_t rows : options.rows) {
    w.rows = rows < 32 ? int64_t(memory.size() / row) : 2048;
    std::vector<float> x(size_t(rows * w.cols), 0.5f), out(size_t(rows * w.rows));
    LinearArgs args{.w = w, .rows = rows, .x = x.data(), .out = out.data()};
    const double time = best_time(options, [&] { backend.linear(*stream, args); });
    const double flops = 2.0 * double(w.rows) * double(w.cols) * double(rows) / time;
    const double bytes = double(w.bytes()) / time;
    fmt::print("{:<8} {:>5} rows {:>7} x {:<5} {:>8.2f} GFLOP/s {:>8.2f} GB/s of weights ({:.0f} % of peak reads)\n",
               format.name, rows, w.rows, w.cols, flops * 1e-9, bytes * 1e-9, 100 * bytes / peak);
    std::fflush(stdout);
  }
}

void bench_attention(Backend& backend, const Options& options, int64_t rows, int32_t context) {
  constexpr int kBlock = 32, kHeads = 32, kKvHeads = 4, kDim = 128;
  const int blocks = (context + kBlock - 1) / kBlock;
  const uint64_t bytes = uint64_t(blocks) * kBlock * kKvHeads * kDim * 2;
  Buffer k = backend.allocate(bytes), v = backend.allocate(bytes);
  KvView kv{KvType::kBF16, kBlock, kKvHeads, kDim, kDim, k.data(), v.data()};
  fill_weights(k, Format::kBF16, kDim);
  fill_weights(v, Format::kBF16, kDim);
  std::vector<int32_t> position, sequence(size_t(rows), 0), table;
  for (int64_t r = 0; r < rows; ++r) position.push_back(context - int32_t(rows) + int32_t(r));
  for (int b = 0; b < blocks; ++b) table.push_back(b);
  std::vector<float> q(size_t(rows * kHeads * kDim), 0.1f), out(q.size());
  AttentionArgs args;
  args.kv = kv;
  args.batch = {rows, position.data(), sequence.data(), table.data(), blocks};
  args.heads = kHeads;
  args.scale = 0.088f;
  args.q = q.data();
  args.out = out.data();
  auto stream = backend.make_stream();
  const double time = best_time(options, [&] { backend.attention(*stream, args); });
  const double pairs = double(rows) * (double(context) - double(rows - 1) / 2);
  fmt::print("attention, BF16 cache, {} rows at {} positions, {} heads on {}: {:.2f} GFLOP/s, {:.2f} GB/s of cache\n",
             rows, context, kHeads, kKvHeads, 4 * pairs * kHeads * kDim / time * 1e-9,
             pairs * kKvHeads * kDim * 4 / time * 1e-9);
}

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> all;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    all.push_back(std::stoll(text.substr(at, comma - at)));
    at = comma + 1;
  }
  return all;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    EF_CHECK(i + 1 < argc, ConfigError, "{}: a value is missing", flag);
    const std::string value = argv[++i];
    if (flag == "--threads")
      options.threads = std::stoi(value);
    else if (flag == "--isa")
      options.isa = value;
    else if (flag == "--format" && find_format(value))
      options.format = find_format(value);
    else if (flag == "--rows")
      options.rows = numbers(value);
    else if (flag == "--cols")
      options.cols = std::stoll(value);
    else if (flag == "--megabytes")
      options.megabytes = std::stoull(value);
    else if (flag == "--seconds")
      options.seconds = std::stod(value);
    else if (flag == "--clock" && (value == "wall" || value == "cpu"))
      options.cpu_clock = value == "cpu";
    else
      fail<ConfigError>(
          "{} {}: expected --threads, --isa, --format, --rows, --cols, --megabytes, --seconds or --clock wall|cpu",
          flag, value);
  }
  return options;
}

void run(const Options& options) {
  ThreadPool pool(options.threads);
  std::vector<Isa> isas = supported_isas();
  if (!options.isa.empty()) isas = {parse_isa(options.isa)};
  for (Isa isa : isas) {
    auto backend = make_cpu_backend(pool, isa);
    Buffer memory = backend->allocate(256 << 20);
    std::fill_n(memory.data(), memory.size(), std::byte(1));
    const double peak = read_bandwidth(pool, memory, options);
    fmt::print("== {}; memory reads {:.2f} GB/s\n", backend->description(), peak * 1e-9);
    for (const FormatInfo& format : all_formats()) {
      if (options.format && options.format != &format) continue;
      if (!has_arithmetic(format.format) || options.cols % format.block_elements != 0) continue;
      bench_linear(*backend, options, format, peak);
    }
    if (options.format) continue;
    bench_attention(*backend, options, 1, 8192);
    bench_attention(*backend, options, 128, 2048);
  }
}

}  // namespace
}  // namespace ef

int main(int argc, char** argv) {
  try {
    ef::run(ef::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_ops: %s\n", error.what());
    return 2;
  }
}
