#include "expertflow/replay/sweep.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

// What several rows are compared with.
struct Baseline {
  size_t workload;
  double share, bandwidth;
  uint64_t lru_bytes = 0, clairvoyant_bytes = 0;
  double lru_stall_seconds = 0;
};

struct Job {
  size_t row, workload, baseline;
  bool is_baseline;
};

ReplayOptions options_of(const SweepOptions& o, const Workload& workload, double share, double bandwidth) {
  ReplayOptions options = o.base;
  options.budget_bytes = uint64_t(share * double(workload.geometry.total_footprint()));
  options.link.bytes_per_second = bandwidth;
  return options;
}

// With the gains of those that adapt. Without a predictor all are one.
std::vector<std::pair<int, double>> distances_of(const SweepOptions& o, const std::string& predictor) {
  std::vector<std::pair<int, double>> all;
  for (const int distance : o.distances)
    for (size_t i = 0; i < (distance == 0 ? o.diversity_gains.size() : 1); ++i)
      all.emplace_back(distance, distance == 0 ? o.diversity_gains[i] : 0.);
  if (predictor == "none" && !all.empty()) all.resize(1);
  return all;
}

}  // namespace

double SweepRow::gap_closed() const {
  const double gap = double(lru_bytes) - double(clairvoyant_bytes);
  return gap > 0 ? (double(lru_bytes) - double(result.bytes())) / gap : 0.;
}

std::vector<SweepRow> sweep(const std::vector<NamedWorkload>& workloads, const SweepOptions& o,
                            const ForecastMaker& make, const std::function<void(uint64_t, uint64_t)>& progress) {
  std::vector<SweepRow> rows;
  std::vector<Baseline> baselines;
  std::vector<Job> jobs;
  for (size_t w = 0; w < workloads.size(); ++w) {
    for (const double share : o.shares) {
      for (const double bandwidth : o.bandwidths) {
        jobs.push_back({0, w, baselines.size(), true});
        baselines.push_back({w, share, bandwidth});
        for (const std::string& policy : o.policies)
          for (const std::string& predictor : o.predictors)
            for (const auto& [distance, gain] : distances_of(o, predictor)) {
              jobs.push_back({rows.size(), w, baselines.size() - 1, false});
              SweepRow row;
              row.trace = workloads[w].name, row.policy = policy, row.predictor = predictor;
              row.distance = distance, row.diversity_gain = gain, row.share = share, row.bandwidth = bandwidth;
              rows.push_back(std::move(row));
            }
      }
    }
  }
  const auto run = [&](const Job& job) {
    const NamedWorkload& named = workloads[job.workload];
    Baseline& base = baselines[job.baseline];
    ReplayOptions options = options_of(o, named.workload, base.share, base.bandwidth);
    if (job.is_baseline) {
      options.policy = "lru";
      options.distance = 1;
      const auto none = make_forecast("none", named.workload);
      const ReplayResult result = replay(named.workload, *none, options);
      base.lru_bytes = result.bytes();
      base.lru_stall_seconds = result.stall_seconds;
      base.clairvoyant_bytes = clairvoyant_bytes(named.workload, options.budget_bytes);
      return;
    }
    SweepRow& row = rows[job.row];
    options.policy = row.policy;
    options.distance = row.distance;
    options.diversity_gain = row.diversity_gain;
    row.budget_bytes = options.budget_bytes;
    const auto forecast = make(row.predictor, named);
    row.result = replay(named.workload, *forecast, options);
  };

  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t done = 0;
  std::exception_ptr error;
  const auto work = [&] {
    for (;;) {
      const size_t i = next++;
      if (i >= jobs.size()) return;
      try {
        run(jobs[i]);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = jobs.size();
        return;
      }
      const std::lock_guard lock(mutex);
      ++done;
      if (progress) progress(done, jobs.size());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < std::max(1, o.threads); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  for (const Job& job : jobs) {
    if (job.is_baseline) continue;
    const Baseline& base = baselines[job.baseline];
    rows[job.row].lru_bytes = base.lru_bytes;
    rows[job.row].clairvoyant_bytes = base.clairvoyant_bytes;
    rows[job.row].lru_stall_seconds = base.lru_stall_seconds;
  }
  return rows;
}

}  // namespace ef
