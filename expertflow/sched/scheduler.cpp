#include "expertflow/sched/scheduler.h"

#include <algorithm>

#include "expertflow/base/errors.h"

namespace ef {

struct Scheduler::Entry {
  RequestId id = 0;
  SequenceRequest request;
  std::vector<TokenId> tokens;  // prompt and what was chosen; all but those held are still to be computed
  SequenceId sequence = -1;
  PrefixCache::Cursor cursor;
  int64_t prompt_logits_from = 0;  // next row of the prompt whose logits its client wants
  int deferred = 0;
  bool started = false, ended = false, decoding = false;

  int64_t prompt_size() const { return int64_t(request.prompt.size()); }
};

void SchedulerOptions::check() const {
  const auto at_least = [](int value, int least, const char* flag) {
    EF_CHECK(value >= least, ConfigError, "{}: expected at least {}, found {}", flag, least, value);
  };
  at_least(prefill_chunk, 0, "prefill-chunk");
  at_least(token_schedule_window, 0, "token-schedule-window");
  at_least(token_schedule_batch, 0, "token-schedule-batch");
  at_least(aging_threshold, 1, "aging-threshold");
}

Scheduler::Scheduler(StepRunner& runner, const SchedulerOptions& options, const RoutingForecast* forecast)
    : runner_(runner), options_(options), forecast_(forecast) {
  options.check();
  if (!options.no_prefix_cache) prefix_ = std::make_unique<PrefixCache>(runner.kv());
}

Scheduler::~Scheduler() {
  for (const auto& entry : running_) close(*entry);
}

RequestId Scheduler::submit(SequenceRequest request) {
  const int64_t size = int64_t(request.prompt.size());
  EF_CHECK(size > 0, RequestError, "expected a prompt of at least one token, found none");
  EF_CHECK(size <= runner_.limits().length, RequestError, "the prompt has {} tokens, the context has {}", size,
           runner_.limits().length);
  EF_DCHECK(request.client != nullptr);
  auto entry = std::make_unique<Entry>();
  entry->id = next_++;
  entry->tokens = request.prompt;
  entry->request = std::move(request);
  waiting_.push_back(std::move(entry));
  return waiting_.back()->id;
}

void Scheduler::close(Entry& entry) {
  if (entry.sequence >= 0) runner_.kv().close(entry.sequence);
  entry.sequence = -1;
}

void Scheduler::fail(Entry& entry, const std::exception_ptr& error) {
  entry.ended = true;
  close(entry);
  entry.request.client->on_error(error);
}

void Scheduler::fail_all(const std::exception_ptr& error) {
  for (const auto& entry : running_) fail(*entry, error);
  for (const auto& entry : waiting_) fail(*entry, error);
  running_.clear();
  waiting_.clear();
}

// Ended entries go; their blocks went back when they ended.
void Scheduler::sweep() {
  std::erase_if(running_, [](const auto& entry) { return entry->ended; });
  std::erase_if(waiting_, [](const auto& entry) { return entry->ended; });
}

bool Scheduler::drop_cancelled() {
  const auto look = [&](Entry& entry) {
    if (!entry.request.client->cancelled()) return;
    entry.ended = true;
    close(entry);
  };
  for (const auto& entry : running_) look(*entry);
  for (const auto& entry : waiting_) look(*entry);
  sweep();
  return !idle();
}

bool Scheduler::room_for(const Entry& entry, int64_t tokens) {
  KvCache& kv = runner_.kv();
  for (int g = 0; g < kv.groups(); ++g) {
    const int64_t missing = kv.missing_blocks(g, entry.sequence, tokens);
    if (kv.free_blocks(g) >= missing) continue;
    if (!prefix_ || !prefix_->make_room(g, missing)) return false;
  }
  return true;
}

// False if the KV cache has no room for all of its tokens and one more; it waits on then. Window groups need room for a
// chunk at a time.
bool Scheduler::start(Entry& entry) {
  KvCache& kv = runner_.kv();
  entry.sequence = kv.open(runner_.limits().length);
  entry.cursor = {};
  int64_t cached = 0;
  const bool use_cache = prefix_ && entry.request.use_prefix_cache && !entry.request.prompt_logits;
  if (use_cache) cached = prefix_->attach(entry.sequence, entry.tokens, entry.cursor);
  const int64_t rest = int64_t(entry.tokens.size()) - cached + 1;
  bool room = true;
  for (int g = 0; g < kv.groups() && room; ++g) {
    const bool window = kv.window(g) > 0;
    int64_t missing =
        kv.missing_blocks(g, entry.sequence, window ? std::min<int64_t>(rest, runner_.limits().rows) : rest);
    // What was admitted before still has to come.
    for (const auto& other : running_)
      if (!window)
        missing +=
            kv.missing_blocks(g, other->sequence, int64_t(other->tokens.size()) - kv.length(other->sequence) + 1);
    room = kv.free_blocks(g) >= missing || (prefix_ && prefix_->make_room(g, missing));
  }
  if (!room) {
    close(entry);
    return false;
  }
  if (!entry.started) {
    if (use_cache) prefix_->count(entry.tokens.size(), cached);
    entry.request.client->on_start(std::min(cached, entry.prompt_size()));
  }
  entry.started = true;
  return true;
}

void Scheduler::admit() {
  const auto blocked = [&](const Entry& entry) {
    const RequestId first = entry.request.after;
    const auto is_first = [&](const auto& other) { return other->id == first && !other->decoding; };
    return first != 0 && (std::any_of(running_.begin(), running_.end(), is_first) ||
                          std::any_of(waiting_.begin(), waiting_.end(), is_first));
  };
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (int(running_.size()) >= runner_.kv().options().max_sequences) return;
    if (blocked(**it)) {
      ++it;
      continue;
    }
    if (!start(**it)) return;  // nobody overtakes
    const auto place = std::upper_bound(running_.begin(), running_.end(), *it,
                                        [](const auto& a, const auto& b) { return a->id < b->id; });
    running_.insert(place, std::move(*it));
    it = waiting_.erase(it);
  }
}

// Those that decode: all of them, or as many as the step takes.
void Scheduler::choose_decodes(std::vector<Piece>& pieces) {
  std::vector<Entry*> ready;
  std::vector<WaitingToken> waiting;
  bool prompts = false;
  for (const auto& entry : running_) {
    const int64_t missing = int64_t(entry->tokens.size()) - runner_.kv().length(entry->sequence);
    if (entry->decoding && missing == 1) {
      ready.push_back(entry.get());
      waiting.push_back({entry->sequence, entry->deferred});
    } else if (missing > 0) {
      prompts = true;
    }
  }
  const int64_t rows = std::min(runner_.limits().rows, runner_.limits().logit_rows);
  const int64_t beside = std::max<int64_t>(1, rows - 1);  // prompts get a row, or they would wait for an answer to end
  const int64_t tokens = step_tokens(runner_.limits(), options_);
  stats_.ready_tokens += ready.size();
  TokenChoice choice;
  choice.most = size_t(prompts ? beside : rows);
  choice.count = std::min(choice.most, size_t(tokens));
  choice.later = size_t(std::min(beside, tokens));
  choice.window = size_t(options_.token_schedule_window);
  choice.aging_threshold = options_.aging_threshold;
  std::vector<bool> goes(ready.size());
  for (const size_t i : choose_tokens(waiting, choice, forecast_)) goes[i] = true;
  for (size_t i = 0; i < ready.size(); ++i) {
    if (goes[i]) {
      pieces.push_back({ready[i], 1, true});
      continue;
    }
    ++stats_.deferred_tokens;
    stats_.longest_deferral = std::max(stats_.longest_deferral, ++ready[i]->deferred);
  }
}

// Equal shares of the rows that are left; what a short prompt does not need goes to the others. Where a step is costly
// a prompt that is alone gets all of them; else that would only make an arrival wait.
void Scheduler::share_prefill(std::vector<Piece>& pieces) {
  std::vector<std::pair<int64_t, Entry*>> rest;  // tokens to compute
  for (const auto& entry : running_) {
    const int64_t held = runner_.kv().length(entry->sequence), all = int64_t(entry->tokens.size());
    if (!entry->decoding || all > held + 1) rest.emplace_back(all - held, entry.get());
  }
  if (rest.empty()) return;
  std::stable_sort(rest.begin(), rest.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  int64_t rows = runner_.limits().rows - int64_t(pieces.size());
  const bool alone = runner_.limits().costly_steps && pieces.empty() && rest.size() == 1 && waiting_.empty();
  if (options_.prefill_chunk > 0 && !alone) rows = std::min<int64_t>(rows, options_.prefill_chunk);
  int64_t logit_rows = runner_.limits().logit_rows - int64_t(pieces.size());
  for (size_t i = 0; i < rest.size() && rows > 0 && logit_rows > 0; ++i) {
    const int64_t share = (rows + int64_t(rest.size() - i) - 1) / int64_t(rest.size() - i);
    int64_t take = std::min(rest[i].first, share);
    if (rest[i].second->request.prompt_logits) take = std::min(take, logit_rows);
    const bool every_row = rest[i].second->request.prompt_logits;
    pieces.push_back({rest[i].second, take, false});
    rows -= take;
    logit_rows -= every_row ? take : 1;
  }
}

void Scheduler::preempt(Entry& entry) {
  close(entry);
  entry.deferred = 0;
  ++stats_.preemptions;
  const auto it =
      std::find_if(running_.begin(), running_.end(), [&](const auto& other) { return other.get() == &entry; });
  auto owned = std::move(*it);
  running_.erase(it);
  // Among those that wait it keeps its place by arrival, in front of all that never ran.
  const auto place = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const auto& other) { return !other->started || other->id > owned->id; });
  waiting_.insert(place, std::move(owned));
}

// Oldest first; where the pool runs out the youngest running sequence gives up its blocks. The oldest always finds
// room: a sequence alone fits the pool.
void Scheduler::make_room(std::vector<Piece>& pieces) {
  KvCache& kv = runner_.kv();
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.entry->id < b.entry->id; });
  std::vector<Piece> kept;
  std::vector<Entry*> gone;
  for (const Piece& piece : pieces) {
    if (std::find(gone.begin(), gone.end(), piece.entry) != gone.end()) continue;
    bool room = room_for(*piece.entry, piece.tokens);
    while (!room && running_.size() > 1) {
      Entry* youngest = running_.back().get();
      gone.push_back(youngest);
      preempt(*youngest);
      if (youngest == piece.entry) break;
      room = room_for(*piece.entry, piece.tokens);
    }
    if (!gone.empty() && gone.back() == piece.entry) continue;
    if (room) kv.reserve(piece.entry->sequence, piece.tokens);  // else the step says what is missing
    kept.push_back(piece);
  }
  pieces = std::move(kept);
}

bool Scheduler::step() {
  if (!drop_cancelled()) return false;
  admit();
  std::vector<Piece> pieces;
  choose_decodes(pieces);
  share_prefill(pieces);
  make_room(pieces);
  if (pieces.empty()) return !idle();
  ++stats_.steps;
  run(pieces);
  sweep();
  return true;
}

// A step that fails is tried again piece by piece, so that only the sequences that meet the fault end with it.
void Scheduler::run(std::span<const Piece> pieces) {
  using Logits = Batch::Piece::Logits;
  Batch batch;
  int top = 0;
  bool all = false;
  for (const Piece& piece : pieces) {
    Entry& e = *piece.entry;
    const int64_t held = runner_.kv().length(e.sequence);
    const bool last = held + piece.tokens == int64_t(e.tokens.size());
    const bool every_row = e.request.prompt_logits && held < e.prompt_size();
    const Logits wanted = every_row ? Logits::kAll : last ? Logits::kLast : Logits::kNone;
    batch.pieces.push_back({e.sequence, std::span(e.tokens).subspan(size_t(held), size_t(piece.tokens)), wanted});
    if (wanted == Logits::kNone) continue;
    const int needs = e.request.client->needs_top();
    all |= every_row || needs == 0 || needs > runner_.limits().most_top;
    top = std::max(top, needs);
  }
  std::vector<RowLogits> rows;
  try {
    runner_.run(batch, all || batch.logit_rows() == 0 ? 0 : top, rows);
  } catch (...) {
    ++stats_.failed_steps;
    for (const Piece& piece : pieces) runner_.kv().unreserve(piece.entry->sequence);
    if (pieces.size() == 1) return fail(*pieces[0].entry, std::current_exception());
    for (const Piece& piece : pieces) run(std::span(&piece, 1));
    return;
  }
  for (const Piece& piece : pieces) (piece.decode ? stats_.decode_tokens : stats_.prefill_tokens) += piece.tokens;
  deliver(pieces, rows);
}

void Scheduler::deliver(std::span<const Piece> pieces, std::span<const RowLogits> rows) {
  size_t row = 0;
  for (const Piece& piece : pieces) {
    Entry& e = *piece.entry;
    const int64_t held = runner_.kv().length(e.sequence), first = held - piece.tokens;
    const bool last = held == int64_t(e.tokens.size());
    const bool every_row = e.request.prompt_logits && first < e.prompt_size();
    const auto mine = rows.subspan(row, every_row ? size_t(piece.tokens) : size_t(last));
    row += mine.size();
    e.deferred = 0;
    if (prefix_ && e.request.use_prefix_cache) prefix_->record(e.sequence, e.tokens, e.cursor);
    try {
      for (size_t i = 0; every_row && i < mine.size(); ++i) {
        const int64_t at = first + int64_t(i);
        if (at != e.prompt_logits_from || at + 1 >= e.prompt_size()) continue;
        e.request.client->on_prompt_logits(at, mine[i]);
        ++e.prompt_logits_from;
      }
      if (!last) continue;
      const std::optional<TokenId> token = e.request.client->next(mine.back());
      e.decoding = true;
      if (token && int64_t(e.tokens.size()) < runner_.limits().length) {
        e.tokens.push_back(*token);
        continue;
      }
    } catch (const DeviceError&) {
      if (prefix_) prefix_->forget(e.cursor);  // whoever asks the same is computed anew
      fail(e, std::current_exception());
      continue;
    } catch (...) {
      fail(e, std::current_exception());
      continue;
    }
    e.ended = true;
    close(e);
  }
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats s = stats_;
  s.running = int(running_.size());
  s.waiting = int(waiting_.size());
  if (prefix_) s.prefix = prefix_->stats();
  const KvCache& kv = runner_.kv();
  for (int g = 0; g < kv.groups(); ++g) {
    if (kv.window(g) > 0 && kv.groups() > 1) continue;
    const int64_t kept = prefix_ ? prefix_->evictable(g) : 0;
    s.kv_used = double(kv.blocks(g) - kv.free_blocks(g) - kept) / double(kv.blocks(g));
    s.kv_kept = double(kept) / double(kv.blocks(g));
  }
  return s;
}

std::vector<Scheduler::Slot> Scheduler::slots() const {
  std::vector<Slot> slots(size_t(runner_.kv().options().max_sequences));
  for (const auto& entry : running_) {
    if (entry->sequence < 0) continue;  // has ended within the step under way
    slots[size_t(entry->sequence)] = {entry->id, !entry->decoding, entry->prompt_size(),
                                      runner_.kv().length(entry->sequence)};
  }
  return slots;
}

}  // namespace ef
