#include "apps/cli/bench_report.h"

#include "apps/cli/common.h"
#include "expertflow/engine/metrics_json.h"

namespace ef::cli {

namespace {

using Json = nlohmann::ordered_json;

double gb(double bytes) { return bytes / 1e9; }

Json spread_json(const Spread& s) {
  return {{"mean", s.mean}, {"stddev", s.deviation}, {"median", s.median}, {"min", s.least}, {"max", s.most}};
}

// What the columns of every output are made of.
struct Figures {
  explicit Figures(const BenchRow& row)
      : bounds(bounds_of(row.result, row.peaks)), rate(spread_of(row.result.rates())) {
    const BenchResult& r = row.result;
    const double tokens = r.test.tokens(), seconds = tokens / rate.mean;
    bound_rate = bounds.seconds() > 0 ? tokens / bounds.seconds() : 0;
    share = bound_rate > 0 ? rate.mean / bound_rate : 0;
    clairvoyant_rate = bounds.clairvoyant_seconds() > 0 ? tokens / bounds.clairvoyant_seconds() : 0;
    memory_rate = r.mean(&BenchSample::weight_bytes) / seconds;
    disk_rate = r.mean(&BenchSample::bytes_read) / seconds;
    weight_bytes_per_token = r.mean(&BenchSample::weight_bytes) / tokens;
    read_per_token = r.mean(&BenchSample::bytes_read) / tokens;
    clairvoyant_per_token = r.clairvoyant_bytes / tokens;
    const double asked = r.mean(&BenchSample::hits) + r.mean(&BenchSample::misses);
    hit_rate = asked > 0 ? r.mean(&BenchSample::hits) / asked : 1;
    stall_per_token = r.mean(&BenchSample::stall_seconds) / tokens;
  }
  Bounds bounds;
  Spread rate;
  double bound_rate, share, clairvoyant_rate, memory_rate, disk_rate, weight_bytes_per_token, read_per_token,
      clairvoyant_per_token, hit_rate, stall_per_token;
};

Json peaks_json(const Peaks& p) {
  Json disk = nullptr;
  if (p.disk.bytes_per_second > 0)
    disk = {{"gb_s", gb(p.disk.bytes_per_second)}, {"readers", p.disk.readers}};
  else
    disk = {{"gb_s", nullptr}, {"reason", p.disk.reason}};
  const auto giga = [](double v) { return v > 0 ? Json(v / 1e9) : Json(nullptr); };
  return {{"memory_read_gb_s", p.memory.bytes_per_second > 0 ? Json(gb(p.memory.bytes_per_second)) : Json(nullptr)},
          {"memory_buffer_bytes", p.memory.buffer_bytes},
          {"memory_buffer_beyond_caches", p.memory.beyond_caches},
          {"int8_gop_s", giga(p.compute.blocks)},
          {"half_gflop_s", giga(p.compute.half)},
          {"f32_gflop_s", giga(p.compute.f32)},
          {"disk", disk}};
}

double hit_rate_of(const BenchSample& s) {
  return s.hits + s.misses > 0 ? double(s.hits) / double(s.hits + s.misses) : 1;
}

// The first repetition beside the timed ones.
Json cold_json(const BenchResult& result) {
  if (!result.cold) return nullptr;
  const BenchSample& s = *result.cold;
  return {{"tokens_per_second", double(result.test.tokens()) / s.seconds()},
          {"seconds", s.seconds()},
          {"hit_rate", hit_rate_of(s)},
          {"bytes_read", s.bytes_read},
          {"stall_seconds", s.stall_seconds}};
}

Json samples_json(const BenchResult& result) {
  Json samples = Json::array();
  for (const BenchSample& s : result.samples)
    samples.push_back({{"seconds", s.seconds()},
                       {"prompt_seconds", s.prompt_seconds},
                       {"decode_seconds", s.decode_seconds},
                       {"hits", s.hits},
                       {"misses", s.misses},
                       {"bytes_read", s.bytes_read},
                       {"evictions", s.evictions},
                       {"stall_seconds", s.stall_seconds},
                       {"weight_bytes", s.weight_bytes}});
  return samples;
}

Json profile_json(const std::optional<BenchProfile>& p) {
  if (!p) return nullptr;
  Json entries = Json::array();
  for (const StreamProfile::Entry& e : p->work.entries)
    entries.push_back({{"name", e.name},
                       {"copy", e.copy},
                       {"count_per_step", double(e.count) / p->steps},
                       {"seconds_per_step", e.seconds / p->steps}});
  return {{"steps", p->steps},
          {"step_seconds", p->step_seconds},
          {"kernel_seconds_per_step", p->kernel_seconds()},
          {"kernels_per_step", double(p->kernels()) / p->steps},
          {"timing_seconds_taken_away", p->work.added_seconds},
          {"empty_kernel_seconds", p->work.empty_seconds},
          {"work", entries}};
}

Json row_json(const BenchRow& row) {
  const Figures f(row);
  const BenchTest& test = row.result.test;
  const auto known = [](double v) { return v > 0 ? Json(v) : Json(nullptr); };
  return {{"test", test.name()},
          {"n_prompt", test.prompt},
          {"n_gen", test.gen},
          {"n_depth", test.depth},
          {"sequences", test.sequences},
          {"device", row.setup.device},
          {"threads", row.setup.threads},
          {"isa", row.setup.isa},
          {"ubatch", row.setup.ubatch},
          {"cache_type", row.setup.cache_type},
          {"expert_memory", row.setup.expert_memory},
          {"expert_budget_bytes", row.setup.budget_bytes},
          {"expert_bytes", row.setup.expert_bytes},
          {"setup_seconds", row.setup.setup_seconds},
          {"first_token_seconds", row.setup.first_token_seconds},
          {"warm_up",
           {{"how", row.setup.warm_up.how},
            {"experts", row.setup.warm_up.experts},
            {"seconds", row.setup.warm_up.seconds}}},
          {"page_cache_share_at_start", row.setup.cached_share < 0 ? Json(nullptr) : Json(row.setup.cached_share)},
          {"tokens_per_second", spread_json(f.rate)},
          {"weight_bytes_per_token", f.weight_bytes_per_token},
          {"memory_gb_s", gb(f.memory_rate)},
          {"operations", row.result.operations.total()},
          {"bound",
           {{"by", f.bounds.by()},
            {"tokens_per_second", known(f.bound_rate)},
            {"share", known(f.share)},
            {"memory_seconds", known(f.bounds.memory)},
            {"compute_seconds", known(f.bounds.compute)},
            {"disk_seconds", known(f.bounds.disk)}}},
          {"experts",
           {{"hit_rate", f.hit_rate},
            {"bytes_read_per_token", f.read_per_token},
            {"disk_gb_s", gb(f.disk_rate)},
            {"stall_seconds_per_token", f.stall_per_token},
            {"clairvoyant_bytes_per_token", f.clairvoyant_per_token},
            {"clairvoyant_tokens_per_second", known(f.clairvoyant_rate)}}},
          {"cold", cold_json(row.result)},
          {"metrics", metrics_json(row.result.metrics, row.result.stats)},
          {"peaks", peaks_json(row.peaks)},
          {"samples", samples_json(row.result)},
          {"profile", profile_json(row.result.profile)}};
}

std::string memory_text(const BenchSetup& s) {
  return fmt::format("{} ({:.0f} %)", s.expert_memory, 100.0 * double(s.budget_bytes) / double(s.expert_bytes));
}

std::string gigas(double value, const char* unit) {
  return value > 0 ? fmt::format("{:.0f} {}", value / 1e9, unit) : "none measured";
}

// The peaks, once for each instruction set and number of threads.
std::string peaks_text(const BenchReport& report) {
  std::string text, last;
  for (const BenchRow& row : report.rows) {
    const Peaks& p = row.peaks;
    if (p.memory.bytes_per_second == 0) return "peaks: not measured\n";
    if (!report.device.empty())
      return fmt::format("peaks, {}: memory read {:.1f} GB/s ({} read over and over); 16-bit matrix products {}\n",
                         row.setup.device, gb(p.memory.bytes_per_second), human_bytes(p.memory.buffer_bytes),
                         gigas(p.compute.half, "GFLOP/s"));
    std::string line = fmt::format(
        "peaks, {} threads, {}: memory read {:.1f} GB/s ({} read over and over{}); 8-bit {}, 16-bit {}, float32 {}",
        row.setup.threads, row.setup.isa, gb(p.memory.bytes_per_second), human_bytes(p.memory.buffer_bytes),
        p.memory.beyond_caches ? "" : "; caches hold a good part of it", gigas(p.compute.blocks, "GOP/s"),
        gigas(p.compute.half, "GFLOP/s"), gigas(p.compute.f32, "GFLOP/s"));
    line += p.disk.bytes_per_second > 0
                ? fmt::format("; disk {:.2f} GB/s ({} readers)\n", gb(p.disk.bytes_per_second), p.disk.readers)
                : fmt::format("; disk: not measured, {}\n", p.disk.reason);
    if (line != last) text += line;
    last = line;
  }
  return text;
}

std::string setup_text(const BenchRow& row) {
  const BenchSetup& s = row.setup;
  std::string text = fmt::format(
      "setup {:.2f} s, first token {:.3f} s{}\n", s.setup_seconds, s.first_token_seconds,
      s.cached_share < 0 ? "" : fmt::format(", {:.0f} % of the files in the page cache before", 100 * s.cached_share));
  if (!s.warm_up.how.empty() && s.warm_up.how != "off")
    text += fmt::format("warm-up ({}): {} experts in {:.2f} s\n", s.warm_up.how, s.warm_up.experts, s.warm_up.seconds);
  if (const auto& cold = row.result.cold;
      cold && row.result.mean(&BenchSample::bytes_read) + double(cold->bytes_read) > 0)
    text += fmt::format(
        "cold: {:.2f} tok/s, hits {:.1f} %, in the first repetition of {}; warm: {:.2f} tok/s in those after it\n",
        row.result.test.tokens() / cold->seconds(), 100 * hit_rate_of(*cold), row.result.test.name(),
        spread_of(row.result.rates()).mean);
  return text;
}

// What kept experts near, and what is to be done about it.
std::string experts_text(const BenchRow& row) {
  std::string text = fmt::format("\n{}, expert memory {}:\n", row.result.test.name(), memory_text(row.setup));
  for (const std::string& line : metrics_lines(row.result.metrics, row.result.stats)) text += "- " + line + "\n";
  return text;
}

// What the kernels of a step take beside the step.
std::string profile_text(const BenchProfile& p, const std::string& test) {
  constexpr double kMicro = 1e6;
  const double sum = p.kernel_seconds(), kernels = double(p.kernels()) / p.steps;
  const auto ratio = [](double a, double b) { return b > 0 ? fmt::format("{:.3f}", a / b) : std::string("?"); };
  std::string text = fmt::format(
      "\n{}: {} steps, each kernel timed by itself\n\n| work | times a step | us each | us a step | of all kernels |\n"
      "| --- | --- | --- | --- | --- |\n",
      test, p.steps);
  double copies = 0;
  for (const StreamProfile::Entry& e : p.work.entries) {
    copies += e.copy ? e.seconds / p.steps : 0;
    text += fmt::format("| {} | {:g} | {:.2f} | {:.1f} | {} |\n", e.name, double(e.count) / p.steps,
                        kMicro * e.seconds / double(e.count), kMicro * e.seconds / p.steps,
                        e.copy ? "-" : ratio(e.seconds / p.steps, sum));
  }
  return text +
         fmt::format(
             "\nIn the timed runs a step takes {:.1f} us: {} x its {:g} kernels ({:.1f} us), {} x kernels and copies "
             "({:.1f} us).\nTiming adds {:.2f} us to each, taken away above; a kernel that does nothing still shows "
             "{:.2f} us.\nHere each begins when the one before has ended; in the timed runs it may begin before "
             "that.\n",
             kMicro * p.step_seconds, ratio(p.step_seconds, sum), kernels, kMicro * sum,
             ratio(p.step_seconds, sum + copies), kMicro * (sum + copies), kMicro * p.work.added_seconds,
             kMicro * p.work.empty_seconds);
}

}  // namespace

Json bench_json(const BenchReport& report) {
  Json rows = Json::array();
  for (const BenchRow& row : report.rows) rows.push_back(row_json(row));
  const MachineFacts& m = report.machine;
  return {{"commit", build_commit()},
          {"command", report.command},
          {"machine",
           {{"cpu", m.cpu},
            {"processors", m.processors},
            {"memory_bytes", m.memory_bytes},
            {"last_level_cache_bytes", m.last_level_cache},
            {"kernel", m.kernel},
            {"instruction_sets", report.isas},
            {"device", report.device.empty() ? Json(nullptr) : Json(report.device)}}},
          {"model",
           {{"path", report.model},
            {"architecture", report.architecture},
            {"file_bytes", report.file_bytes},
            {"resident_bytes", report.resident_bytes},
            {"expert_bytes_per_token", report.expert_bytes_per_token}}},
          {"tokens_from", report.tokens_from},
          {"repetitions", report.repetitions},
          {"warm_up", report.warm_up},
          {"results", rows},
          {"token_stream", report.stream}};
}

std::string bench_markdown(const BenchReport& report) {
  const MachineFacts& m = report.machine;
  std::string text = fmt::format("{}: {}, {}\n{}, {} processors, {}, {}; commit {}\n", report.model,
                                 report.architecture, human_bytes(report.file_bytes), m.cpu, m.processors,
                                 human_bytes(m.memory_bytes), m.kernel, build_commit());
  if (!report.device.empty()) text += fmt::format("on {}\n", report.device);
  text += fmt::format("{} repetitions, {}, tokens from {}\n", report.repetitions,
                      report.warm_up ? "one more before them untimed" : "no warm-up", report.tokens_from);
  text += peaks_text(report);
  if (!report.rows.empty()) text += setup_text(report.rows.front());
  if (report.device.empty() && report.file_bytes < m.last_level_cache)
    text += "the last-level cache could hold the model: the memory bound may be passed\n";
  bool reads = false;
  for (const BenchRow& row : report.rows) reads = reads || row.result.mean(&BenchSample::bytes_read) > 0;
  const bool device = !report.device.empty();
  text += fmt::format("\n| test | {} | expert memory | tok/s | bound tok/s | share | GB/s memory |",
                      device ? "device" : "threads | isa");
  std::string rule =
      device ? "| --- | --- | --- | --- | --- | --- | --- |" : "| --- | --- | --- | --- | --- | --- | --- | --- |";
  if (reads) text += " hits | MB read/token | GB/s disk | ms waited/token | clairvoyant bound tok/s |";
  if (reads) rule += " --- | --- | --- | --- | --- |";
  text += "\n" + rule + "\n";
  for (const BenchRow& row : report.rows) {
    const Figures f(row);
    const std::string bound = f.bound_rate > 0 ? fmt::format("{:.2f} ({})", f.bound_rate, f.bounds.by()) : "none";
    const std::string where = device ? row.setup.device : fmt::format("{} | {}", row.setup.threads, row.setup.isa);
    text += fmt::format("| {} | {} | {} | {:.2f} ± {:.2f} | {} | {} | {:.2f} |", row.result.test.name(), where,
                        memory_text(row.setup), f.rate.mean, f.rate.deviation, bound,
                        f.share > 0 ? fmt::format("{:.1f} %", 100 * f.share) : "-", gb(f.memory_rate));
    if (reads)
      text += fmt::format(" {:.1f} % | {:.2f} | {:.3f} | {:.2f} | {} |", 100 * f.hit_rate, f.read_per_token / 1e6,
                          gb(f.disk_rate), 1e3 * f.stall_per_token,
                          f.clairvoyant_rate > 0 ? fmt::format("{:.2f}", f.clairvoyant_rate) : "none");
    text += "\n";
  }
  for (const BenchRow& row : report.rows)
    if (row.result.mean(&BenchSample::bytes_read) > 0) text += experts_text(row);
  for (const BenchRow& row : report.rows)
    if (row.result.profile) text += profile_text(*row.result.profile, row.result.test.name());
  return text;
}

std::string bench_csv(const BenchReport& report) {
  std::string text =
      "test,n_prompt,n_gen,n_depth,threads,isa,expert_memory,expert_budget_bytes,repetitions,tok_s_mean,tok_s_stddev,"
      "tok_s_median,tok_s_min,tok_s_max,bound_tok_s,bound_by,share,memory_gb_s,weight_bytes_per_token,hit_rate,"
      "bytes_read_per_token,disk_gb_s,stall_s_per_token,clairvoyant_tok_s,memory_peak_gb_s,disk_peak_gb_s,sequences,"
      "device,"
      "half_peak_gflop_s,step_us,step_kernels,step_kernels_us,empty_kernel_us\n";
  for (const BenchRow& row : report.rows) {
    const Figures f(row);
    const BenchTest& t = row.result.test;
    text += fmt::format("{},{},{},{},{},{},{},{},{},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f},{},{:.4f},{:.4f},{:.0f},",
                        t.name(), t.prompt, t.gen, t.depth, row.setup.threads, row.setup.isa, row.setup.expert_memory,
                        row.setup.budget_bytes, row.result.samples.size(), f.rate.mean, f.rate.deviation, f.rate.median,
                        f.rate.least, f.rate.most, f.bound_rate, f.bounds.by(), f.share, gb(f.memory_rate),
                        f.weight_bytes_per_token);
    text +=
        fmt::format("{:.4f},{:.0f},{:.4f},{:.6f},{:.4f},{:.3f},{:.3f},{},{},{:.0f},", f.hit_rate, f.read_per_token,
                    gb(f.disk_rate), f.stall_per_token, f.clairvoyant_rate, gb(row.peaks.memory.bytes_per_second),
                    gb(row.peaks.disk.bytes_per_second), t.sequences, row.setup.device, row.peaks.compute.half / 1e9);
    if (const auto& p = row.result.profile)
      text += fmt::format("{:.2f},{:g},{:.2f},{:.2f}\n", 1e6 * p->step_seconds, double(p->kernels()) / p->steps,
                          1e6 * p->kernel_seconds(), 1e6 * p->work.empty_seconds);
    else
      text += ",,,\n";
  }
  return text;
}

}  // namespace ef::cli
