// Runs a fuzz target without libFuzzer: replays a corpus, then a bounded number of mutations that depend on the seed
// alone. Corpus files named good_* must be accepted and bad_* refused. A finding aborts; --only ITERATION repeats it.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

namespace fs = std::filesystem;
using Input = std::vector<uint8_t>;

struct Options {
  fs::path corpus;
  uint64_t iterations = 10000, seed = 1;
  int64_t only = -1;
};

char current[512] = "start";  // what is being run, for the handler below

void report_current() {
  std::fputs("while running: ", stderr);
  std::fputs(current, stderr);
  std::fputs("\n", stderr);
}
void on_abort(int) { report_current(); }

/// splitmix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n == 0 ? 0 : size_t(next() % n); }

 private:
  uint64_t state_;
};

constexpr std::array<uint64_t, 24> kInteresting = {
    0,         1,          2,          7,          8,          9,          24,
    31,        32,         39,         64,         127,        128,        255,
    0x7fff,    0xffff,     0x7fffffff, 0x80000000, 0xffffffff, 1ull << 40, (1ull << 62) + 1,
    ~0ull / 2, 1ull << 63, ~0ull};
constexpr std::array<const char*, 14> kWords = {
    "{",   "}", "[", "]", "\"", ":", ",", "-1", "1e9", "18446744073709551615", "null", "\\u0000", "\"dtype\":\"F32\"",
    "GGUF"};

void overwrite(Input& input, Random& random) {
  static constexpr size_t kWidths[] = {1, 2, 4, 8};
  const size_t width = kWidths[random.below(4)];
  if (input.size() < width) return;
  uint64_t value = kInteresting[random.below(kInteresting.size())];
  if (random.below(4) == 0) value += random.below(17) - 8;
  std::memcpy(input.data() + random.below(input.size() - width + 1), &value, width);
}

void mutate(Input& input, Random& random, const std::vector<Input>& corpus) {
  const size_t at = random.below(input.size());
  switch (random.below(8)) {
    case 0:
      if (!input.empty()) input[at] ^= uint8_t(1u << random.below(8));
      return;
    case 1:
      if (!input.empty()) input[at] = uint8_t(random.next());
      return;
    case 2:
      input.resize(at);
      return;
    case 3: {  // the beginning of this one, the end of another one
      const Input& other = corpus[random.below(corpus.size())];
      input.resize(at);
      input.insert(input.end(), other.begin() + long(random.below(other.size() + 1)), other.end());
      return;
    }
    case 4: {  // a piece less
      const size_t n = std::min(input.size() - at, 1 + random.below(16));
      input.erase(input.begin() + long(at), input.begin() + long(at + n));
      return;
    }
    case 5: {  // a piece twice
      const size_t n = std::min(input.size() - at, 1 + random.below(32));
      const Input piece(input.begin() + long(at), input.begin() + long(at + n));
      input.insert(input.begin() + long(at), piece.begin(), piece.end());
      return;
    }
    case 6: {
      const std::string word = kWords[random.below(kWords.size())];
      input.insert(input.begin() + long(at), word.begin(), word.end());
      return;
    }
    default:
      overwrite(input, random);
      return;
  }
}

/// The length at the front follows the size, so that mutations reach what lies behind it (safetensors).
void repair_length(Input& input, Random& random) {
  if (input.size() < 16 || input[8] != '{' || random.below(2) == 0) return;
  const auto brace = std::find(input.rbegin(), input.rend() - 8, uint8_t('}'));
  const uint64_t length = uint64_t(input.rend() - brace) - 8;
  std::memcpy(input.data(), &length, 8);
}

void run(const Input& input, const std::string& name) {
  std::snprintf(current, sizeof(current), "%s", name.c_str());
  const auto file = fs::path(name).filename().string();
  bool accepted = false;
  try {
    // A copy of exactly this size, so that the address sanitizer sees a read past its end.
    const std::vector<uint8_t> exact(input.begin(), input.end());
    accepted = ef_fuzz::accepts(exact.data(), exact.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "finding: an exception that is no ef::Error: %s\n", error.what());
    std::abort();
  }
  ef_fuzz::expect(accepted || file.rfind("good_", 0) != 0, "a good file was refused");
  ef_fuzz::expect(!accepted || file.rfind("bad_", 0) != 0, "a bad file was accepted");
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (i + 1 < argc && arg == "--iterations") {
      options.iterations = std::stoull(argv[++i]);
    } else if (i + 1 < argc && arg == "--seed") {
      options.seed = std::stoull(argv[++i]);
    } else if (i + 1 < argc && arg == "--only") {
      options.only = std::stoll(argv[++i]);
    } else if (options.corpus.empty() && arg[0] != '-') {
      options.corpus = arg;
    } else {
      std::fprintf(stderr, "usage: %s CORPUS_FOLDER [--iterations N] [--seed N] [--only ITERATION]\n", argv[0]);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::signal(SIGABRT, on_abort);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(report_current);

  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(options.corpus)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Input> corpus;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    run(corpus.back(), file.string());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: expected a corpus, found no files\n", options.corpus.c_str());
    return 2;
  }

  const uint64_t first = options.only < 0 ? 0 : uint64_t(options.only),
                 last = options.only < 0 ? options.iterations : first + 1;
  uint64_t accepted = 0;
  for (uint64_t i = first; i < last; ++i) {
    Random random(options.seed * 0x100000001b3u + i);
    Input input = corpus[random.below(corpus.size())];
    for (size_t n = 1 + random.below(4); n > 0; --n) mutate(input, random, corpus);
    repair_length(input, random);
    std::snprintf(current, sizeof(current), "--seed %llu --only %llu", static_cast<unsigned long long>(options.seed),
                  static_cast<unsigned long long>(i));
    accepted += ef_fuzz::accepts(input.data(), input.size());
  }
  std::printf("%zu corpus files, %llu mutations, %llu of them accepted: no finding\n", corpus.size(),
              static_cast<unsigned long long>(last - first), static_cast<unsigned long long>(accepted));
  return 0;
}
