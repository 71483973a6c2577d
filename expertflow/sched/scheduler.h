// Many sequences over one engine: continuous batching with chunked prefill. Every step takes the next token of those
// that decode and, with the rows that are left, pieces of prompts in equal shares, so that short prompts do not wait
// for long ones. Sequences are admitted in order of arrival while the KV cache has room; when it runs out the youngest
// gives its blocks back and is computed again later, from tokens that are kept, so that nothing is lost.
//
// Pure logic: the engine stands behind StepRunner, choices of tokens behind SequenceClient. Not thread-safe.
#pragma once
#include <algorithm>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "expertflow/model/kv_cache.h"
#include "expertflow/model/model.h"
#include "expertflow/sched/prefix_cache.h"
#include "expertflow/sched/scheduler_options.h"
#include "expertflow/sched/token_choice.h"

namespace ef {

/// One row's logits: all of them, or only the largest (falling, lower ids first among equals).
struct RowLogits {
  std::span<const float> all;
  std::span<const TokenId> top_ids;
  std::span<const float> top;
  int odd_layer = -1;  ///< the first layer whose router gave this row weights that are no numbers, as far as known
};

/// What the scheduler drives. limits() do not change.
class StepRunner {
 public:
  struct Limits {
    int rows = 512, logit_rows = 1;  ///< of one step
    int most_top = 0;                ///< largest `top` that run() takes
    int64_t length = 4096;           ///< tokens of one sequence at most, and its rope length
    /// A step costs much beside its rows (experts that are read for it), so that longer ones are worth waiting for.
    bool costly_steps = false;
  };
  virtual ~StepRunner() = default;
  virtual KvCache& kv() = 0;
  virtual const Limits& limits() const = 0;
  /// See Engine::step; top > 0: step_top. rows: as many as the batch has logit rows, in its order, valid until the next
  /// call. Whatever is thrown has left the sequences' lengths as they were.
  virtual void run(const Batch& batch, int top, std::vector<RowLogits>& rows) = 0;
};

/// Answers of which one step can compute a token, where no prompt is in it.
inline int step_tokens(const StepRunner::Limits& limits, const SchedulerOptions& options) {
  const int rows = std::min(limits.rows, limits.logit_rows);
  return options.token_schedule_batch > 0 ? std::min(rows, options.token_schedule_batch) : rows;
}

/// Whoever asked for a sequence. Members are called from within Scheduler::step() and cancel nothing by themselves.
class SequenceClient {
 public:
  virtual ~SequenceClient() = default;
  /// Asked before each step; true: the sequence ends now and gives its blocks back, without a further call.
  virtual bool cancelled() { return false; }
  /// How many of the largest logits next() needs; 0: all of them.
  virtual int needs_top() const { return 0; }
  /// The sequence's first step is about to run; `cached` tokens of the prompt need not be computed. Once.
  virtual void on_start(int64_t /*cached*/) {}
  /// Logits after prompt[at], where SequenceRequest::prompt_logits asks for them; ascending, once each.
  virtual void on_prompt_logits(int64_t /*at*/, const RowLogits&) {}
  /// The token after all before it; nothing: that was all, the sequence ends without a further call. What it throws
  /// fails this sequence alone.
  virtual std::optional<TokenId> next(const RowLogits& logits) = 0;
  /// The sequence ended with an error: its own, or of a step that failed with it alone.
  virtual void on_error(std::exception_ptr error) = 0;
};

using RequestId = uint64_t;

struct SequenceRequest {
  std::vector<TokenId> prompt;  ///< 1 to limits().length tokens
  std::shared_ptr<SequenceClient> client;
  bool use_prefix_cache = true;
  bool prompt_logits = false;  ///< of every prompt token but the last; turns the prefix cache off
  RequestId after = 0;         ///< starts when that request has been prefilled or is gone (several answers to a prompt)
};

struct SchedulerStats {
  uint64_t steps = 0, prefill_tokens = 0, decode_tokens = 0;  ///< computed, recomputed ones included
  uint64_t preemptions = 0, failed_steps = 0;
  uint64_t ready_tokens = 0, deferred_tokens = 0;  ///< decode tokens that could go, and were put off, summed over steps
  int longest_deferral = 0;                        ///< steps
  int running = 0, waiting = 0;
  double kv_used = 0;  ///< share of the full-attention blocks that sequences hold
  double kv_kept = 0;  ///< ... that kept prefixes alone hold
  PrefixCacheStats prefix;
};

class Scheduler {
 public:
  /// forecast may be null: tokens are not chosen by experts then. ConfigError for options out of range.
  Scheduler(StepRunner& runner, const SchedulerOptions& options, const RoutingForecast* forecast = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// RequestError with the counts for a prompt that is empty or too long.
  RequestId submit(SequenceRequest request);
  /// One step of the engine, if there is anything to do.
  bool step();
  uint64_t steps() const { return stats_.steps; }
  uint64_t prefilled() const { return stats_.prefill_tokens; }
  int waiting() const { return int(waiting_.size()); }
  int running() const { return int(running_.size()); }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  /// Ends everything: each client's on_error is called.
  void fail_all(const std::exception_ptr& error);
  SchedulerStats stats() const;
  /// What a slot is at, for /slots.
  struct Slot {
    RequestId request = 0;
    bool prefilling = false;
    int64_t prompt_tokens = 0, held_tokens = 0;
  };
  std::vector<Slot> slots() const;

 private:
  struct Entry;
  struct Piece {
    Entry* entry;
    int64_t tokens;
    bool decode;
  };
  bool drop_cancelled();
  void admit();
  bool start(Entry& entry);
  void choose_decodes(std::vector<Piece>& pieces);
  void share_prefill(std::vector<Piece>& pieces);
  void make_room(std::vector<Piece>& pieces);
  bool room_for(const Entry& entry, int64_t tokens);
  void preempt(Entry& entry);
  void run(std::span<const Piece> pieces);
  void deliver(std::span<const Piece> pieces, std::span<const RowLogits> rows);
  void fail(Entry& entry, const std::exception_ptr& error);
  void close(Entry& entry);
  void sweep();

  StepRunner& runner_;
  SchedulerOptions options_;
  const RoutingForecast* forecast_;
  std::unique_ptr<PrefixCache> prefix_;
  std::deque<std::unique_ptr<Entry>> waiting_;   ///< order of arrival; preempted ones in front
  std::vector<std::unique_ptr<Entry>> running_;  ///< order of arrival
  RequestId next_ = 1;
  SchedulerStats stats_;
};

}  // namespace ef
