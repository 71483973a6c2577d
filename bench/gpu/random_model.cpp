// bench_random_model OUT.gguf --shape NAME [--type q4_k_s] [--output-type TYPE] [--layers N] [--at-most BYTES]
//                    [--seed 1] [--threads 0]
// Writes a checkpoint with that model's shape and random weights. --at-most: with as many of its layers as so many
// bytes hold. The last line says what was written.
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdio>

#include "bench/gpu/random_checkpoint.h"
#include "expertflow/base/errors.h"

namespace ef {
namespace {

template <class T>
T number(const std::string& flag, const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  EF_CHECK(error == std::errc() && end == text.data() + text.size(), ConfigError, "{}: expected a number, found \"{}\"",
           flag, text);
  return value;
}

int run(int argc, char** argv) {
  RandomOptions o;
  std::string out;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (!flag.starts_with("--")) {
      EF_CHECK(out.empty(), ConfigError, "expected one file to write, found \"{}\" too", flag);
      out = flag;
      continue;
    }
    EF_CHECK(i + 1 < argc, ConfigError, "{}: expected a value, found none", flag);
    const std::string value = argv[++i];
    if (flag == "--shape")
      o.shape = value;
    else if (flag == "--type")
      o.type = value;
    else if (flag == "--output-type")
      o.output_type = value;
    else if (flag == "--layers")
      o.layers = number<int>(flag, value);
    else if (flag == "--at-most")
      o.at_most = number<uint64_t>(flag, value);
    else if (flag == "--seed")
      o.seed = number<uint64_t>(flag, value);
    else if (flag == "--threads")
      o.threads = number<int>(flag, value);
    else
      fail<ConfigError>("expected --shape, --type, --output-type, --layers, --at-most, --seed or --threads, found {}",
                        flag);
  }
  EF_CHECK(!out.empty(), ConfigError, "expected a file to write, found none");
  const RandomPlan plan = plan_random(o);
  const auto start = std::chrono::steady_clock::now();
  write_random(plan, o, out);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double gb = double(plan.bytes()) / 1e9;
  fmt::print("{}: {} in {}, {} of {} layers, {} tensors, {:.2f} GB in {:.1f} s ({:.2f} GB/s)\n", out, o.shape, o.type,
             plan.layers, plan.all_layers, plan.tensors.size(), gb, seconds, gb / seconds);
  return 0;
}

}  // namespace
}  // namespace ef

int main(int argc, char** argv) {
  try {
    return ef::run(argc, argv);
  } catch (const ef::ConfigError& e) {
    std::fprintf(stderr, "bench_random_model: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_random_model: %s\n", e.what());
    return 1;
  }
}
