// bench: speed of prompts and of decoding, beside what the machine could do.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>

#include "apps/cli/bench_report.h"
#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/memory_text.h"
#include "apps/cli/options_cli11.h"
#include "apps/cli/outputs.h"
#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"
#include "expertflow/base/topology.h"
#include "expertflow/engine/device.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/engine/text_model.h"

namespace ef::cli {

namespace {

struct BenchCommand {
  CommonOptions common;
  EngineOptions engine;
  std::string prompts = "512", gens = "128", depths = "0", parallel = "1", threads = "0", isas = "auto",
              budgets = "auto";
  std::vector<std::string> pairs;
  int repetitions = 5;
  std::string output = "md", output_err, text;
  int64_t seed = 1;
  bool no_warm_up = false, no_peaks = false, profile = false, dry_run = false;
  std::string peak_bytes = "2GiB";
  TraceOptions trace;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(prompts, {"-p,--n-prompt", "tokens of a prompt, one test each (128,512); 0: none"});
    visit(gens, {"-n,--n-gen", "tokens decoded one by one, one test each; 0: none"});
    visit(pairs, {"--pg", "a prompt and tokens after it in one test, \"512,128\" (repeat for more) (-pg)"});
    visit(parallel, {"--parallel", "sequences that are decoded side by side, one test each (1,16) (-np)"});
    visit(depths, {"-d,--n-depth", "tokens of context before each test (0,1024)"});
    visit(repetitions, {"-r,--repetitions", "timed runs of each test"});
    visit(threads, {"-t,--threads", "compute threads (1,2), 0: as run chooses them"});
    visit(isas, {"--isa", "CPU instruction sets (avx2,avx512), see run --help"});
    visit(budgets, {"--expert-memory,--expert-cache-size", "budgets for experts (40%,6GiB), see run --help"});
    visit(output, {"-o,--output", "md, json or csv"});
    visit(output_err, {"--output-err", "the same once more on stderr, as md, json or csv (-oe)"});
    visit(text, {"--text", "take tokens from this text file rather than at random"});
    visit(seed, {"-s,--seed", "of the random tokens"});
    visit(no_warm_up, {"--no-warmup", "time the first run too"});
    visit(profile, {"--profile", "time each kernel of some steps by itself; on a CUDA device"});
    visit(no_peaks, {"--no-peaks", "do not measure what the machine can do: no bounds"});
    visit(peak_bytes, {"--peak-bytes", "memory that measuring its read speed takes at most"});
    trace.for_each(visit);
    visit(dry_run, {"--dry-run", "print where memory would go, for each engine, and measure nothing"});
  }
};

std::vector<std::string> split(const std::string& list, const char* flag) {
  std::vector<std::string> parts;
  size_t begin = 0;
  do {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    EF_CHECK(!parts.back().empty(), ConfigError, "{}: expected values separated by commas, found \"{}\"", flag, list);
    begin = end + 1;
  } while (begin <= list.size());
  return parts;
}

std::vector<int> numbers(const std::string& list, const char* flag) {
  constexpr int kMost = 1 << 24;
  std::vector<int> out;
  for (const std::string& part : split(list, flag)) {
    int value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    EF_CHECK(error == std::errc() && end == part.data() + part.size() && value >= 0 && value <= kMost, ConfigError,
             "{}: expected numbers from 0 to {}, found \"{}\"", flag, kMost, part);
    out.push_back(value);
  }
  return out;
}

// Prompts alone are read one after the other, whatever --parallel says: they would be the same test again.
std::vector<BenchTest> tests_of(const BenchCommand& o) {
  std::vector<BenchTest> tests;
  const std::vector<int> parallel = numbers(o.parallel, "--parallel");
  for (const int sequences : parallel)
    EF_CHECK(sequences > 0, ConfigError, "--parallel: expected at least 1, found {}", sequences);
  for (const int depth : numbers(o.depths, "--n-depth")) {
    for (const int prompt : numbers(o.prompts, "--n-prompt"))
      if (prompt > 0) tests.push_back({prompt, 0, depth});
    for (const int gen : numbers(o.gens, "--n-gen"))
      for (const int sequences : parallel)
        if (gen > 0) tests.push_back({0, gen, depth, sequences});
    for (const std::string& pair : o.pairs) {
      const std::vector<int> values = numbers(pair, "--pg");
      EF_CHECK(values.size() == 2 && values[0] > 0 && values[1] > 0, ConfigError,
               "--pg: expected tokens of a prompt and tokens after it (512,128), found \"{}\"", pair);
      for (const int sequences : parallel) tests.push_back({values[0], values[1], depth, sequences});
    }
  }
  EF_CHECK(!tests.empty(), ConfigError, "--n-prompt, --n-gen, --pg: nothing to run");
  return tests;
}

// What an engine must have room for.
struct Extent {
  int sequences = 1;    // of the test with the most
  int64_t context = 0;  // tokens of all sequences of the test with the most
};
Extent extent_of(const std::vector<BenchTest>& tests) {
  Extent extent;
  for (const BenchTest& test : tests) {
    extent.sequences = std::max(extent.sequences, test.sequences);
    extent.context = std::max(extent.context, int64_t(test.length()) * test.sequences);
  }
  return extent;
}

// An engine of the lists.
EngineOptions engine_options(const BenchCommand& o, int threads, const std::string& isa, const std::string& budget,
                             const Extent& extent) {
  EngineOptions options = o.engine;
  options.threads = threads, options.isa = isa, options.expert_memory = budget;
  options.ctx_size = extent.context, options.parallel = extent.sequences;
  return options;
}

TokenStream stream_of(const BenchCommand& o, const ModelFiles& files, std::string& description) {
  if (o.text.empty()) {
    description = fmt::format("seed {}", o.seed);
    return TokenStream(files.config.vocab, uint64_t(o.seed));
  }
  const auto tokenizer = load_tokenizer(files.checkpoint);
  EF_CHECK(tokenizer.has_value(), ModelError, "{}: --text needs a tokenizer, the model brings none", o.common.model);
  std::vector<TokenId> ids = tokenizer->encode(read_named_file("--text", o.text));
  EF_CHECK(!ids.empty(), ConfigError, "--text: {} holds no token", o.text);
  description = fmt::format("{} ({} tokens, gone round at its end)", o.text, ids.size());
  return TokenStream(std::move(ids));
}

// The largest file of the model: where its disk is measured.
std::filesystem::path largest_file(const ModelFiles& files) {
  const TensorDirectory& directory = files.checkpoint.directory;
  int largest = 0;
  for (int i = 1; i < directory.file_count(); ++i)
    if (directory.file(i).size() > directory.file(largest).size()) largest = i;
  return directory.file(largest).name();
}

// As the kernel has it: what was typed, words separated by spaces.
std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  while (!text.empty() && text.back() == 0) text.pop_back();
  std::replace(text.begin(), text.end(), char(0), ' ');
  return text;
}

// The memory probe's buffer: far beyond caches where memory allows.
uint64_t probe_bytes(const std::string& most) {
  constexpr uint64_t kLeast = 4ull << 20;
  const BudgetRequest asked = parse_budget(most);
  EF_CHECK(asked.kind == BudgetRequest::Kind::kBytes && asked.bytes >= kLeast, ConfigError,
           "peak-bytes: expected at least 4MiB, found \"{}\"", most);
  const uint64_t left = read_memory_info().left().value_or(8ull << 30);
  return std::min(asked.bytes, std::max<uint64_t>(left / 4, 64ull << 20));
}

class Bench {
 public:
  explicit Bench(const BenchCommand& o)
      : o_(o),
        log_(o.common.make_log()),
        tests_(tests_of(o)),
        extent_(extent_of(tests_)),
        device_(parse_device(o.engine.device)) {
    EF_CHECK(!device_.cuda || o.isas == BenchCommand().isas, ConfigError,
             "--isa: has no effect with --device {}, found \"{}\"", o.engine.device, o.isas);
  }

  BenchReport run() {
    const auto files = open_model(o_.common.model);
    describe(*files);
    const TokenStream stream = stream_of(o_, *files, report_.tokens_from);
    report_.stream = stream.slice(0, uint64_t(extent_.context) * uint64_t(o_.repetitions + 1));
    const std::filesystem::path file = largest_file(*files);
    DiskPeak disk;
    disk.reason = o_.no_peaks ? "--no-peaks" : "every expert is in the device's memory";
    if (!o_.no_peaks && !device_.cuda) disk = measure_disk_read(file);
    for (const int threads : numbers(o_.threads, "--threads"))
      for (const std::string& isa : split(o_.isas, "--isa")) {
        const std::string isa_found(isa_name(parse_isa(isa)));
        const Peaks peaks = measure_peaks(threads, isa_found, disk);
        for (const std::string& budget : split(o_.budgets, "--expert-memory"))
          run_engine(engine_options(o_, threads, isa, budget, extent_), isa_found, peaks, stream, cached_share(file));
      }
    return std::move(report_);
  }

 private:
  void describe(const ModelFiles& files) {
    report_.command = command_line();
    report_.model = o_.common.model;
    report_.architecture = files.config.arch;
    report_.file_bytes = files.checkpoint.directory.total_bytes();
    report_.resident_bytes = files.binding.resident_bytes;
    report_.expert_bytes_per_token = work_of(files).expert_bytes;
    report_.repetitions = o_.repetitions;
    report_.warm_up = !o_.no_warm_up;
    report_.machine = machine_facts();
    for (const Isa isa : supported_isas()) report_.isas.emplace_back(isa_name(isa));
  }

  Peaks measure_peaks(int threads, const std::string& isa, const DiskPeak& disk) const {
    if (o_.no_peaks) return {{}, {}, disk};
    if (device_.cuda) {
      const DevicePeaks peaks = measure_device(device_.index);
      return {peaks.memory, peaks.compute, disk};
    }
    ThreadPool pool(threads);
    return {measure_memory_read(pool, probe_bytes(o_.peak_bytes)), measure_compute(pool, isa), disk};
  }

  void run_engine(const EngineOptions& options, const std::string& isa, const Peaks& peaks, const TokenStream& stream,
                  double cached) {
    const auto start = std::chrono::steady_clock::now();
    const auto since = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    const auto engine = load_engine(o_.common, options, *log_);
    if (device_.cuda) report_.device = engine->backend().description();
    BenchSetup setup;
    setup.device = engine->backend().name();
    setup.threads = options.threads > 0 ? options.threads : default_threads();
    setup.ubatch = engine->options().ubatch, setup.isa = device_.cuda ? "" : isa,
    setup.expert_memory = options.expert_memory;
    setup.cache_type = options.cache_type_k;
    setup.budget_bytes = engine->plan().expert_budget, setup.expert_bytes = engine->plan().expert_total;
    setup.cached_share = cached;
    setup.setup_seconds = since();
    if (options.warmup != "auto") setup.warm_up = warm_up(*engine, o_.common.quiet);
    {
      Sequence sequence(*engine, 1);
      const TokenId token = stream.at(0);
      sequence.feed(std::span(&token, 1));
    }
    setup.first_token_seconds = since() - setup.setup_seconds - setup.warm_up.seconds;
    const auto recorder = start_trace(o_.trace, *engine, o_.common.model);
    engine->set_recorder(nullptr);  // the timed runs alone
    bool cold = true;
    for (const BenchTest& test : tests_) {
      log_->info("bench: {}, {} threads, {}, {}", test.name(), setup.threads, device_.cuda ? setup.device : isa,
                 options.expert_memory);
      const BenchOptions how{o_.repetitions, !o_.no_warm_up, o_.profile, cold, recorder.get()};
      report_.rows.push_back({setup, peaks, run_bench(*engine, test, stream, how)});
      cold = false;
    }
    if (recorder) recorder->close();
  }

  const BenchCommand& o_;
  std::unique_ptr<Log> log_;
  std::vector<BenchTest> tests_;
  const Extent extent_;
  const DeviceChoice device_;
  BenchReport report_;
};

std::string written(const BenchReport& report, const std::string& format) {
  if (format == "json") return bench_json(report).dump(1) + "\n";
  return format == "csv" ? bench_csv(report) : bench_markdown(report);
}

int print_plans(const BenchCommand& o) {
  EF_CHECK(o.output != "csv", ConfigError, "--output: csv has no form for the plans of --dry-run, expected md or json");
  const auto files = open_model(o.common.model);
  const Extent extent = extent_of(tests_of(o));
  nlohmann::ordered_json plans = nlohmann::ordered_json::array();
  for (const int threads : numbers(o.threads, "--threads"))
    for (const std::string& isa : split(o.isas, "--isa"))
      for (const std::string& budget : split(o.budgets, "--expert-memory")) {
        const EngineOptions options = engine_options(o, threads, isa, budget, extent);
        const MemoryPlan plan = plan_without_loading(*files, options);
        nlohmann::ordered_json row = {{"threads", threads}, {"isa", isa}, {"expert_memory", budget}};
        row.update(plan_json(plan, options));
        plans.push_back(row);
        if (o.output == "md")
          fmt::print("threads {}, isa {}, expert memory {}\n{}\n", threads, isa, budget, plan_text(plan, options));
      }
  if (o.output == "json") fmt::print("{}\n", plans.dump(1));
  return 0;
}

int run_bench_command(const BenchCommand& o) {
  o.common.check();
  const auto check_format = [](const char* flag, const std::string& format) {
    EF_CHECK(format == "md" || format == "json" || format == "csv", ConfigError,
             "{}: expected md, json or csv, found \"{}\"", flag, format);
  };
  check_format("--output", o.output);
  if (!o.output_err.empty()) check_format("--output-err", o.output_err);
  EF_CHECK(o.repetitions >= 1 && o.repetitions <= 10000, ConfigError, "--repetitions: expected 1 to 10000, found {}",
           o.repetitions);
  EF_CHECK(o.text.empty() || o.seed == BenchCommand().seed, ConfigError, "--seed: has no effect with --text");
  o.trace.check();
  // A trace is of one engine.
  const bool one = numbers(o.threads, "--threads").size() * split(o.isas, "--isa").size() *
                       split(o.budgets, "--expert-memory").size() ==
                   1;
  EF_CHECK(o.trace.file.empty() || one, ConfigError,
           "--record-trace: expected one value each of --threads, --isa and --expert-memory");
  if (o.dry_run) return print_plans(o);
  const BenchReport report = Bench(o).run();
  fmt::print("{}", written(report, o.output));
  if (!o.output_err.empty()) fmt::print(stderr, "{}", written(report, o.output_err));
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BenchCommand>();
  CLI::App* command = app.add_subcommand("bench", "Speed of prompts and decoding beside what the machine could do");
  bind_options(*command, options->common);
  bind_options(*command, *options);
  // Lists of bench's own stand for these; the context is as long as the tests need.
  EngineOptions& engine = options->engine;
  const std::vector<const void*> own = {&engine.expert_memory, &engine.threads, &engine.isa, &engine.ctx_size};
  engine.for_each([bind = Binder(*command), &own](auto& member, const OptionInfo& info) {
    if (std::find(own.begin(), own.end(), static_cast<const void*>(&member)) == own.end()) bind(member, info);
  });
  add_bench_serve(*command, exit_code);
  command->callback([options, command, &exit_code] {
    if (!command->get_subcommands().empty()) return;
    check_outputs({{"--record-trace", options->trace.file}},
                  inputs_of(options->common, options->engine, {{"--text", options->text}}));
    exit_code = run_bench_command(*options);
  });
}

}  // namespace ef::cli
