// Requests to an OpenAI-compatible server at given times, and when their tokens came. One thread, any number of
// connections.
#pragma once
#include <string>
#include <vector>

namespace ef::server {

struct LoadTarget {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string path;  ///< with the prefix: "/v1/completions"
  std::string api_key;
};
/// "http://host:port" or "http://host:port/prefix"; ConfigError naming the flag for anything else.
LoadTarget parse_target(const std::string& url, const std::string& endpoint, const std::string& flag = "--url");

struct LoadRequest {
  std::string body;  ///< JSON; must ask for a stream with usage
  double at = 0;     ///< seconds after the start; negative: as soon as one of the others has ended
};

struct LoadRecord {
  double due = 0;  ///< when it was to be sent (closed loop: was sent), seconds after the start
  double first = 0, end = 0;
  std::vector<double> gaps;  ///< between events with text
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int status = 0;
  std::string error;  ///< empty if the whole answer came
};

/// Records in the requests' order. in_flight: at most so many at once (those that are due wait, and their wait counts);
/// 0: no bound.
std::vector<LoadRecord> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests, int in_flight,
                                 double timeout_seconds);

}  // namespace ef::server
