// The governor's test: tokens with prefetch as it decides (auto) against tokens without, on links from saturated to
// none. Two engines in one process take the same tokens in turns, a block at a time, so that what else the machine does
// meets both; ratios are means over blocks without the highest and lowest tenths.
//
// The link is paced (--io-limit) over files in the page cache: its speed is known, and the disk's other users do not
// matter. On a "comparable" link the copies of a token take as long as its compute. Copies out of the page cache are
// compute themselves, of which a processor of two cores has none to spare; a copy engine would. So that cell computes
// with one thread and in float32: copies have a core to themselves, on a link that it can keep up with.
//
// Two engines that do the same work differ as long as they live, by up to 2 % here and 8 % with direct reads. So both
// go without first and last, a quarter of the blocks each: the figure is the ratio with prefetch by the ratio without.
//
// One cell has no link of ours: reads go around the page cache to the disk itself, which a thread that reads all the
// time keeps busy. It is left out, and said so, where the file system has no direct reads.
//
// What no prefetch can go below: the longer of copies and compute where the link is known, else the time without what
// was waited. A table for docs/ comes before the verdict.
// BLOCKS: timed ones of a cell; ONLY: the cell of that name; HORIZON: a distance instead of an adaptive one.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/engine/text_model.h"

namespace ef {
namespace {

constexpr double kMostWorse = 0.02, kLeastBetter = 0.15;

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

struct Setup {
  std::string model;
  std::string predictor = "auto";
  std::string activations = "q8";
  int threads = 0;
};

struct Cell {
  std::string name;
  std::string budget;
  double link = 0;  ///< copies take so many times as long as compute; 0: unpaced
  bool must_gain = false;
  bool direct = false;  ///< from the disk, beside a reader that never stops
};

// Reads a file around the page cache, a mebibyte after another from places all over it, until it goes.
class BusyReader {
 public:
  explicit BusyReader(const std::string& file) : fd_(::open(file.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {
    if (able()) thread_ = std::thread([this] { read(); });
  }
  ~BusyReader() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    if (fd_ >= 0) ::close(fd_);
  }
  BusyReader(const BusyReader&) = delete;
  BusyReader& operator=(const BusyReader&) = delete;
  bool able() const { return fd_ >= 0; }
  uint64_t bytes() const { return bytes_; }

 private:
  void read() {
    constexpr size_t kPiece = 1 << 20, kSector = 4096;
    const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(kSector, kPiece), std::free);
    const off_t pieces = std::max<off_t>(1, ::lseek(fd_, 0, SEEK_END) / off_t(kPiece));
    for (off_t i = 0; !stop_; i = (i + 257) % pieces) {
      const ssize_t got = ::pread(fd_, memory.get(), kPiece, i * off_t(kPiece));
      if (got <= 0) return;
      bytes_ += uint64_t(got);
    }
  }
  int fd_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> bytes_{0};
  std::thread thread_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Side {
 public:
  /// Without prefetch, until it is asked for.
  Side(const Setup& setup, const std::string& budget, double bytes_per_second, const Log& log, bool direct = false)
      : predictor_(setup.predictor) {
    EngineOptions o;
    o.expert_memory = budget;
    o.activations = setup.activations;
    o.threads = setup.threads;
    o.async_prefetch = "off";
    o.ctx_size = 512;
    o.direct_io = direct ? "on" : "off";
    o.io_limit = bytes_per_second > 0 ? fmt::format("{:.0f}", bytes_per_second) : "none";
    engine_ = std::make_unique<Engine>(open_model(setup.model), o, log);
  }
  /// Seconds that these tokens take one by one, behind a few that are not timed.
  double run(std::span<const TokenId> before, std::span<const TokenId> tokens) {
    Sequence sequence(*engine_, int64_t(before.size() + tokens.size()));
    sequence.feed(before);
    const auto start = std::chrono::steady_clock::now();
    for (const TokenId& token : tokens) sequence.feed(std::span(&token, 1));
    return seconds_since(start);
  }
  void prefetch(const std::string& mode) {
    const char* horizon = std::getenv("HORIZON");
    engine_->set_prefetch(mode, predictor_, horizon ? horizon : "auto");
  }
  Engine& engine() { return *engine_; }

 private:
  const std::string predictor_;
  std::unique_ptr<Engine> engine_;
};

// Of the middle four fifths.
double trimmed_mean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t cut = values.size() / 10;
  double sum = 0;
  for (size_t i = cut; i < values.size() - cut; ++i) sum += values[i];
  return sum / double(values.size() - 2 * cut);
}

// One standard error of their mean.
double error_of(const std::vector<double>& values) {
  double mean = 0, squares = 0;
  for (const double v : values) mean += v / double(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / double(values.size() - 1) / double(values.size()));
}

// What else the machine does only adds to a time.
double lower_quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bar {
 public:
  Bar(Setup fast, Setup slow, const std::string& text) : fast_(std::move(fast)), slow_(std::move(slow)) {
    const auto files = open_model(fast_.model);
    const auto tokenizer = load_tokenizer(files->checkpoint);
    EF_CHECK(tokenizer.has_value(), ModelError, "{}: no tokenizer", fast_.model);
    tokens_ = tokenizer->encode(read_text_file(text));
  }

  int run() {
    measure(slow_, setting("BLOCKS", 60) * 2 / 3, {{"comparable", "16%", 1, true}});
    measure(fast_, setting("BLOCKS", 60),
            {{"saturated disk", "40%", 4},
             {"capped link", "40%", 2},
             {"fast disk", "40%", 0},
             {"full residency", "100%", 0},
             {"saturated real disk", "40%", 0, false, true}});
    fmt::print("\n| cell | budget | link | ms a token without | with | no prefetch goes below | prefetch | wasted |\n");
    fmt::print("| --- | --- | --- | ---: | ---: | ---: | --- | ---: |\n{}\n", table_);
    fmt::print("bar governor: {}: token time with prefetch against without: {}\n", good_ ? "ok" : "SHORT", figures_);
    return good_ ? 0 : 1;
  }

 private:
  void measure(const Setup& setup, int blocks, const std::vector<Cell>& cells) {
    const char* only = std::getenv("ONLY");
    if (only && std::none_of(cells.begin(), cells.end(), [&](const Cell& cell) { return cell.name == only; })) return;
    const Missed missed = measure_missed(setup, cells.front().budget, blocks);
    const double bytes = missed.bytes, compute = std::min(measure_compute(setup), missed.compute);
    fmt::print("{}, activations {}, {}: compute {:.2f} ms a token; {:.1f} MB a token missed at {}\n", setup.model,
               setup.activations, setup.threads ? fmt::format("{} thread", setup.threads) : "a thread a core",
               1e3 * compute, bytes / 1e6, cells.front().budget);
    for (const Cell& cell : cells) {
      if (only && cell.name != only) continue;
      if (cell.direct && !BusyReader(setup.model).able()) {
        figures_ += fmt::format(", {} not measured: no direct reads here", cell.name);
        continue;
      }
      const auto [ratio, bound] = measure(setup, cell, blocks, compute, bytes);
      const bool fits = ratio <= (cell.must_gain ? 1 - kLeastBetter : 1 + kMostWorse);
      good_ &= fits;
      figures_ += fmt::format("{}{} {:+.1f} % (bound {:+.1f} %){}", figures_.empty() ? "" : ", ", cell.name,
                              100 * (ratio - 1), 100 * (bound - 1), fits ? "" : " (SHORT)");
    }
  }

  std::span<const TokenId> block(int number, int count) const {
    const size_t at = size_t(number) * 97 % (tokens_.size() - size_t(count));
    return std::span(tokens_).subspan(at, size_t(count));
  }

  double measure_compute(const Setup& setup) {
    Side side(setup, "100%", 0, log_);
    std::vector<double> times;
    for (int i = 0; i < 14; ++i) {
      const auto tokens = block(i, kBefore + kBlock);
      const double time = side.run(tokens.first(kBefore), tokens.subspan(kBefore)) / kBlock;
      if (i >= 2) times.push_back(time);  // the first ones bring the experts
    }
    return lower_quartile(times);
  }
  struct Missed {
    double bytes = 0;    ///< a token, of the blocks that are timed
    double compute = 0;  ///< seconds a token, by what it did not wait
  };
  Missed measure_missed(const Setup& setup, const std::string& budget, int blocks) {
    Side side(setup, budget, 0, log_);
    ExpertStats first, before;
    std::vector<double> times;
    for (int i = 0; i < kWarm + blocks; ++i) {
      before = side.engine().expert_stats();
      if (i == kWarm) first = before;
      const auto tokens = block(i, kBefore + kBlock);
      const double time = side.run(tokens.first(kBefore), tokens.subspan(kBefore));
      // The few tokens before a block wait and are read for as well.
      const double waited = (side.engine().expert_stats().stall_seconds - before.stall_seconds) / (kBlock + kBefore);
      if (i >= kWarm) times.push_back(time / kBlock - waited);
    }
    const double bytes = double(side.engine().expert_stats().bytes_read - first.bytes_read);
    return {bytes / (double(blocks) * (kBlock + kBefore)), lower_quartile(times)};
  }

  // Blocks that both sides have taken in turns.
  struct Turns {
    std::vector<double> ratios, offs;  ///< with to without; seconds a token without
    double off_sum = 0, waited = 0;
  };
  // Blocks first, first + 1 and so on.
  Turns take_turns(Side& off, Side& with, int first, int blocks) {
    Turns out;
    for (int i = first; i < first + blocks; ++i) {
      const auto tokens = block(i, kBefore + kBlock);
      const auto run = [&](Side& side) { return side.run(tokens.first(kBefore), tokens.subspan(kBefore)); };
      double without = 0, time = 0;
      const double stalled = off.engine().expert_stats().stall_seconds;
      if (i % 2 == 0)
        without = run(off), time = run(with);
      else
        time = run(with), without = run(off);
      // The few tokens before a block wait as well.
      out.waited += (off.engine().expert_stats().stall_seconds - stalled) * kBlock / (kBlock + kBefore);
      out.ratios.push_back(time / without);
      out.offs.push_back(without / kBlock);
      out.off_sum += without;
    }
    return out;
  }

  struct Found {
    double ratio = 1, bound = 1;  ///< of the time without; what no prefetch can go below
  };
  Found measure(const Setup& setup, const Cell& cell, int blocks, double compute, double bytes) {
    const double copy = cell.link * compute, link = copy > 0 ? bytes / copy : 0;
    Side off(setup, cell.budget, link, log_, cell.direct), with(setup, cell.budget, link, log_, cell.direct);
    const auto busy = cell.direct ? std::make_unique<BusyReader>(setup.model) : nullptr;
    const auto begin = std::chrono::steady_clock::now();
    take_turns(off, with, 0, kWarm);  // both caches fill
    int next = kWarm;
    const auto turns = [&](int count) { return take_turns(off, with, std::exchange(next, next + count), count); };
    Turns alike = turns(blocks / 2);
    with.prefetch("auto");
    const ExpertStats off_before = off.engine().expert_stats(), with_before = with.engine().expert_stats();
    const Turns found = turns(blocks);
    const ExpertStats without = off.engine().expert_stats(), stats = with.engine().expert_stats();
    with.prefetch("off");
    for (const double ratio : turns(blocks / 2).ratios) alike.ratios.push_back(ratio);
    const double raw = trimmed_mean(found.ratios), raw_error = error_of(found.ratios);
    const double own = trimmed_mean(alike.ratios), own_error = error_of(alike.ratios);
    const double ratio = raw / own, error = ratio * std::hypot(raw_error / raw, own_error / own);
    fmt::print(
        "{}: {:.2f} ms a token without, ratio {:.3f} +- {:.3f} ({:.3f} +- {:.3f} in {} blocks of {}, {:.3f} +- {:.3f} "
        "while neither had it)",
        cell.name, 1e3 * median(found.offs), ratio, error, raw, raw_error, blocks, kBlock, own, own_error);
    const double bound =
        copy > 0 ? std::min(1., std::max(copy, compute) / median(found.offs)) : 1 - found.waited / found.off_sum;
    if (copy > 0) fmt::print("; link {:.2f} GB/s, copies {:.2f} ms", link / 1e9, 1e3 * copy);
    if (busy)
      fmt::print("; direct reads at {:.2f} GB/s beside a reader's {:.2f} GB/s", without.bytes_per_second / 1e9,
                 double(busy->bytes()) / 1e9 / seconds_since(begin));
    fmt::print("; no prefetch can go below {:.3f}\n", bound);
    const double tokens = double(blocks) * (kBlock + kBefore);
    fmt::print("  read {:.2f} MB a token without, {:.2f} with; slots' memory in use {:.1f} %, {:.1f} %\n",
               double(without.bytes_read - off_before.bytes_read) / 1e6 / tokens,
               double(stats.bytes_read - with_before.bytes_read) / 1e6 / tokens, 100 * without.cache_utilization,
               100 * stats.cache_utilization);
    const std::string steps = print_decisions(stats);
    const std::string how = copy > 0 ? fmt::format("{:.2f} GB/s", link / 1e9) : cell.direct ? "the disk" : "page cache";
    table_ += fmt::format("| {} | {} | {} | {:.2f} | {:+.1f} +- {:.1f} % | {:+.1f} % | {} | {:.1f} MB |\n", cell.name,
                          cell.budget, how, 1e3 * median(found.offs), 100 * (ratio - 1), 100 * error, 100 * (bound - 1),
                          steps, double(stats.wasted_bytes) / 1e6);
    std::fflush(stdout);
    return {ratio, bound};
  }

  // What the governor did, and why; steps with prefetch, in words.
  static std::string print_decisions(const ExpertStats& stats) {
    if (!stats.foresight) return "none";
    const GovernorStats& g = stats.foresight->governor;
    const std::string steps = fmt::format("{} of {} steps", g.steps_on, g.steps_on + g.steps_off);
    fmt::print("  prefetch {}; {} with it; {} copied ahead, {} used; {:.1f} MB wasted; distance {}\n", g.reason(),
               steps, g.issued, g.used, double(stats.wasted_bytes) / 1e6, stats.foresight->horizon);
    fmt::print("  of {} candidates {} unlikely, {} over the link's budget, {} over the pool's share, {} taken back\n",
               g.candidates, g.unlikely, g.over_budget, g.over_share, g.cancelled);
    for (const TrialResult& r : g.decisions) fmt::print("    step {}: {}\n", r.step, r.reason());
    return steps;
  }

  static constexpr int kBlock = 32, kBefore = 4, kWarm = 4;
  const Setup fast_, slow_;
  const Log log_{LogLevel::kWarning, nullptr};
  std::vector<TokenId> tokens_;
  bool good_ = true;
  std::string figures_, table_;
};

}  // namespace
}  // namespace ef

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: bar_governor FAST_MODEL SLOW_MODEL PREDICTOR_OF_SLOW TEXT\n", stderr);
    return 2;
  }
  try {
    return ef::Bar({argv[1]}, {argv[2], argv[3], "f32", 1}, argv[4]).run();
  } catch (const std::exception& error) {
    fmt::print("bar governor: SHORT: {}\n", error.what());
    return 1;
  }
}
