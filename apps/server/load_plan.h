// What load there is: which prompts are sent when, all from a seed; and what users saw of it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/server/load_client.h"

namespace ef::server {

struct LoadPlan {
  std::string prompts = "16-64:70,128-512:25,700-1000:5";  ///< lengths in words, and their weights
  double rate = 4, temperature = 0;                        ///< rate: requests a second; 0: closed loop
  int requests = 100, max_tokens = 64;
  int64_t seed = 1;
  bool chat = false;
};

/// Poisson arrivals. text: what words are taken from; null: made-up ones. ConfigError for what is no mix of lengths.
std::vector<LoadRequest> make_requests(const LoadPlan& plan, const std::string* text);

/// Latencies (mean, P50, P95, P99, most), throughput, failures by message, and the share of the requests whose first
/// token came within sla_ttft and whose others, on average, within sla_itl; one that failed is not.
nlohmann::ordered_json load_report(const std::vector<LoadRecord>& records, double sla_ttft, double sla_itl);

}  // namespace ef::server
