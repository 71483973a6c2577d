// How steps are put together. Every member is a flag, an environment variable and a key of the config file (for_each).
#pragma once
#include "expertflow/base/options.h"

namespace ef {

struct SchedulerOptions {
  int prefill_chunk = 256;
  bool no_prefix_cache = false;
  int token_schedule_window = 0;
  int token_schedule_batch = 0;
  int aging_threshold = 4;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(prefill_chunk, {"--prefill-chunk",
                          "prompt tokens of one step at most, all requests together, while others wait or decode; 0: "
                          "as many as --ubatch-size takes"});
    visit(no_prefix_cache, {"--no-prefix-cache", "compute every prompt from its first token"});
    visit(token_schedule_window, {"--token-schedule-window",
                                  "where a step cannot take every token that waits: among how many of the longest "
                                  "waiting it chooses those whose "
                                  "experts are near; 0: they go in turn"});
    visit(token_schedule_batch,
          {"--token-schedule-batch",
           "running answers of which a step computes a token at most; 0: as many as it can take"});
    visit(aging_threshold, {"--aging-threshold", "steps at most by which a token is put off for others"});
  }
  void check() const;  ///< ConfigError naming the flag
};

}  // namespace ef
