// Scheduling over an engine whose answers tell whether every token was computed once, in order, over the right blocks.
#include "expertflow/sched/scheduler.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/sched/fake_runner.h"

namespace ef::testing {
namespace {

struct Job {
  std::vector<TokenId> prompt;
  std::shared_ptr<GreedyClient> client;
  size_t wanted = 0;
  RequestId id = 0;
};

Job submit(Scheduler& scheduler, std::vector<TokenId> prompt, size_t wanted, RequestId after = 0) {
  Job job{prompt, std::make_shared<GreedyClient>(wanted), wanted};
  SequenceRequest request;
  request.prompt = std::move(prompt);
  request.client = job.client;
  request.after = after;
  job.id = scheduler.submit(std::move(request));
  return job;
}

void run_out(Scheduler& scheduler, int most = 100000) {
  while (most-- > 0 && scheduler.step()) {
  }
  EXPECT_TRUE(scheduler.idle());
}

void expect_answer(const Job& job) {
  EXPECT_EQ(job.client->error, nullptr);
  EXPECT_TRUE(job.client->done);
  EXPECT_EQ(job.client->tokens, answer_to(job.prompt, job.wanted));
  EXPECT_EQ(job.client->starts.size(), 1u);
}

SchedulerOptions options(bool prefix = true, int chunk = 16) {
  SchedulerOptions o;
  o.no_prefix_cache = !prefix;
  o.prefill_chunk = chunk;
  return o;
}

TEST(Scheduler, TokensDoNotDependOnNeighbours) {
  for (const int neighbours : {0, 1, 8}) {
    FakeRunner runner(kv_of(1024, 9), limits_of(32, 9, 256));
    Scheduler scheduler(runner, options());
    const Job job = submit(scheduler, prompt_of(37, 1), 20);
    std::vector<Job> others;
    for (int i = 0; i < neighbours; ++i) others.push_back(submit(scheduler, prompt_of(size_t(3 + 11 * i), 2 + i), 25));
    run_out(scheduler);
    expect_answer(job);
    for (const Job& other : others) expect_answer(other);
  }
}

TEST(Scheduler, PromptsComeInChunksWhileOthersDecode) {
  FakeRunner runner(kv_of(512, 2), limits_of(32, 2, 256));
  Scheduler scheduler(runner, options(false, 16));
  const Job first = submit(scheduler, prompt_of(5, 1), 30);
  scheduler.step();  // the whole prompt
  ASSERT_EQ(runner.steps.size(), 1u);
  EXPECT_EQ(runner.steps[0].size(), 1u);
  const Job second = submit(scheduler, prompt_of(40, 2), 3);
  scheduler.step();
  scheduler.step();
  scheduler.step();
  for (const size_t s : {1, 2}) {
    ASSERT_EQ(runner.steps[s].size(), 2u);
    EXPECT_EQ(runner.steps[s][0].tokens, 1);   // the first decodes on
    EXPECT_EQ(runner.steps[s][1].tokens, 16);  // 40 = 16 + 16 + 8
  }
  EXPECT_EQ(runner.steps[3][1].tokens, 8);
  run_out(scheduler);
  expect_answer(first);
  expect_answer(second);
}

TEST(Scheduler, OneAloneTakesMoreRowsWhereStepsAreCostly) {
  for (const bool costly : {false, true}) {
    auto limits = limits_of(32, 2, 256);
    limits.costly_steps = costly;
    FakeRunner runner(kv_of(512, 2), limits);
    Scheduler scheduler(runner, options(false, 8));
    const Job job = submit(scheduler, prompt_of(70, 1), 1);
    run_out(scheduler);
    expect_answer(job);
    ASSERT_EQ(runner.steps.size(), costly ? 3u : 9u);  // 32 + 32 + 6, or eights
    EXPECT_EQ(runner.steps[0][0].tokens, costly ? 32 : 8);
    EXPECT_EQ(runner.steps.back()[0].tokens, 6);
  }
}

// A prompt of many chunks and ten short ones behind it: each short one is through within two steps of its admission.
TEST(Scheduler, E18_ShortPromptsDoNotWaitForALongOne) {
  FakeRunner runner(kv_of(2048, 11), limits_of(64, 11, 1024));
  Scheduler scheduler(runner, options(false, 64));
  const Job lengthy = submit(scheduler, prompt_of(900, 1), 2);
  scheduler.step();
  std::vector<Job> shorts;
  for (int i = 0; i < 10; ++i) shorts.push_back(submit(scheduler, prompt_of(5, 2 + i), 4));
  scheduler.step();
  for (const Job& job : shorts) EXPECT_EQ(job.client->tokens.size(), 1u);
  // And the long one goes on meanwhile.
  EXPECT_GT(runner.steps[1].front().tokens, 5);
  run_out(scheduler);
  for (const Job& job : shorts) expect_answer(job);
  expect_answer(lengthy);
}

TEST(Scheduler, TheKvCacheLimitsAdmission) {
  // 16 blocks of 4 tokens and one more a sequence: three prompts of 20 and what they answer do not all fit.
  FakeRunner runner(kv_of(64, 4), limits_of(32, 4, 64));
  Scheduler scheduler(runner, options(false));
  std::vector<Job> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(submit(scheduler, prompt_of(30, i), 4));
  scheduler.step();
  EXPECT_EQ(scheduler.stats().running, 2);
  EXPECT_EQ(scheduler.stats().waiting, 4);
  run_out(scheduler);
  for (const Job& job : jobs) expect_answer(job);
  EXPECT_EQ(scheduler.stats().preemptions, 0u);
}

TEST(Scheduler, PreemptionLosesNothing) {
  for (const bool prefix : {false, true}) {
    FakeRunner runner(kv_of(64, 4), limits_of(32, 4, 64));
    Scheduler scheduler(runner, options(prefix));
    std::vector<Job> jobs;
    for (int i = 0; i < 4; ++i) jobs.push_back(submit(scheduler, prompt_of(10, i), 40));
    run_out(scheduler);
    for (const Job& job : jobs) expect_answer(job);
    EXPECT_GT(scheduler.stats().preemptions, 0u);
    EXPECT_EQ(scheduler.stats().prefix.queried_tokens, prefix ? 40u : 0u) << "four prompts of ten, once each";
  }
}

// However often a prompt waits for room, it was looked up once, and what is said to be found is what it was told.
TEST(Scheduler, LookupsAreCountedOnceARequest) {
  FakeRunner runner(kv_of(64, 4), limits_of(32, 4, 64));
  Scheduler scheduler(runner, options());
  std::vector<Job> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(submit(scheduler, prompt_of(30, i % 2), 4));
  run_out(scheduler);
  uint64_t found = 0;
  for (const Job& job : jobs) {
    expect_answer(job);
    found += uint64_t(job.client->starts.front());
  }
  EXPECT_GT(found, 0u);
  EXPECT_EQ(scheduler.stats().prefix.hit_tokens, found);
  EXPECT_EQ(scheduler.stats().prefix.queried_tokens, 180u);
}

TEST(Scheduler, E10_CancellingFreesTheSlotWithinOneStep) {
  FakeRunner runner(kv_of(256, 2), limits_of(16, 2, 128));
  Scheduler scheduler(runner, options(false, 8));
  const int64_t all = runner.kv().free_blocks(0);
  const Job decoding = submit(scheduler, prompt_of(4, 1), 100);
  const Job prefilling = submit(scheduler, prompt_of(100, 2), 5);
  const Job queued = submit(scheduler, prompt_of(4, 3), 5);
  const Job last = submit(scheduler, prompt_of(6, 4), 5);
  scheduler.step();
  scheduler.step();
  ASSERT_GT(decoding.client->tokens.size(), 0u);
  ASSERT_TRUE(prefilling.client->tokens.empty());
  ASSERT_TRUE(queued.client->starts.empty());
  queued.client->cancel = true;
  prefilling.client->cancel = true;
  scheduler.step();
  EXPECT_EQ(scheduler.stats().waiting, 0);
  EXPECT_EQ(last.client->starts.size(), 1u);  // the slot is the next one's at once
  decoding.client->cancel = true;
  scheduler.step();
  EXPECT_EQ(scheduler.stats().running, 1);
  run_out(scheduler);
  expect_answer(last);
  EXPECT_TRUE(queued.client->starts.empty());
  EXPECT_TRUE(prefilling.client->tokens.empty());
  EXPECT_EQ(runner.kv().free_blocks(0), all);
}

TEST(Scheduler, E20_AFaultFailsOnlyTheRequestThatMeetsIt) {
  FakeRunner runner(kv_of(256, 3), limits_of(32, 3, 64));
  Scheduler scheduler(runner, options());
  const Job a = submit(scheduler, prompt_of(9, 1), 12);
  std::vector<TokenId> bad = prompt_of(9, 2);
  bad[5] = kPoison;
  const Job b = submit(scheduler, bad, 12);
  const Job c = submit(scheduler, prompt_of(9, 3), 12);
  // Who is asked while the step is tried again piece by piece: b has ended by then and holds no slot.
  size_t least = 3;
  runner.before = [&](const Batch&) {
    const auto slots = scheduler.slots();
    least = std::min(least, size_t(std::count_if(slots.begin(), slots.end(), [](auto& s) { return s.request != 0; })));
  };
  run_out(scheduler);
  EXPECT_LT(least, 3u);
  expect_answer(a);
  expect_answer(c);
  EXPECT_TRUE(b.client->tokens.empty());
  EXPECT_THROW(std::rethrow_exception(b.client->error), DeviceError);
}

TEST(Scheduler, E20_AClientThatThrowsFailsAlone) {
  struct Thrower : GreedyClient {
    using GreedyClient::GreedyClient;
    std::optional<TokenId> next(const RowLogits& row) override {
      if (tokens.size() == 2) throw RequestError("not finite");
      return GreedyClient::next(row);
    }
  };
  FakeRunner runner(kv_of(256, 3), limits_of(32, 3, 64));
  Scheduler scheduler(runner, options());
  const Job a = submit(scheduler, prompt_of(9, 1), 12);
  auto thrower = std::make_shared<Thrower>(12);
  SequenceRequest request;
  request.prompt = prompt_of(5, 2);
  request.client = thrower;
  scheduler.submit(std::move(request));
  run_out(scheduler);
  expect_answer(a);
  EXPECT_EQ(thrower->tokens.size(), 2u);
  EXPECT_THROW(std::rethrow_exception(thrower->error), RequestError);
}

TEST(Scheduler, SeveralAnswersToOnePromptShareIt) {
  FakeRunner runner(kv_of(512, 4), limits_of(32, 4, 128));
  Scheduler scheduler(runner, options());
  const auto prompt = prompt_of(65, 1);
  std::vector<Job> jobs{submit(scheduler, prompt, 8)};
  for (int i = 0; i < 3; ++i) jobs.push_back(submit(scheduler, prompt, 8, jobs[0].id));
  run_out(scheduler);
  for (const Job& job : jobs) expect_answer(job);
  EXPECT_EQ(jobs[0].client->starts[0], 0);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(jobs[i].client->starts[0], 64);
  EXPECT_EQ(scheduler.stats().prefill_tokens, 65u + 3);
}

TEST(Scheduler, PromptLogitsComeOnceEachInOrder) {
  FakeRunner runner(kv_of(256, 3), limits_of(32, 3, 64));
  Scheduler scheduler(runner, options());
  const Job other = submit(scheduler, prompt_of(20, 1), 12);
  auto client = std::make_shared<GreedyClient>(0);
  SequenceRequest request;
  request.prompt = prompt_of(20, 2);
  request.client = client;
  request.prompt_logits = true;
  const auto prompt = request.prompt;
  scheduler.submit(std::move(request));
  run_out(scheduler);
  expect_answer(other);
  ASSERT_EQ(client->prompt_rows.size(), 19u);
  for (size_t i = 0; i < 19; ++i) {
    EXPECT_EQ(client->prompt_rows[i].first, int64_t(i));
    EXPECT_EQ(client->prompt_rows[i].second, token_after(std::span(prompt).first(i + 1)));
  }
}

TEST(Scheduler, AnEmptyOrTooLongPromptIsRefused) {
  FakeRunner runner(kv_of(64, 1), limits_of(32, 1, 64));
  Scheduler scheduler(runner, options());
  EXPECT_THROW(submit(scheduler, {}, 1), RequestError);
  EXPECT_THROW(submit(scheduler, prompt_of(65, 1), 1), RequestError);
  EXPECT_TRUE(scheduler.idle());
}

// Many clients that come and go over a pool that is too small, with beginnings in common: every answer is right, and
// every block comes back.
TEST(Scheduler, E17_RandomTrafficOverASmallPool) {
  for (int seed = 0; seed < 12; ++seed) {
    std::mt19937 random{uint32_t(seed)};
    const auto upto = [&](int n) { return int(random() % uint32_t(n)); };
    const std::vector<int> windows = seed % 3 == 2 ? std::vector<int>{0, 12} : std::vector<int>{0};
    FakeRunner runner(kv_of(96, 1 + seed % 5), limits_of(24, 1 + seed % 5, 80), windows);
    std::vector<int64_t> all;
    for (int g = 0; g < runner.kv().groups(); ++g) all.push_back(runner.kv().free_blocks(g));
    std::vector<Job> jobs;
    {
      Scheduler scheduler(runner, options(seed % 2 == 0, 8));
      for (int round = 0; round < 400; ++round) {
        if (jobs.size() < 60 && upto(3) == 0) {
          std::vector<TokenId> prompt = prompt_of(size_t(upto(30)), upto(3));
          const auto rest = prompt_of(size_t(1 + upto(20)), 100 + upto(5));
          prompt.insert(prompt.end(), rest.begin(), rest.end());
          jobs.push_back(submit(scheduler, prompt, size_t(1 + upto(25))));
        }
        if (!jobs.empty() && upto(20) == 0) jobs[size_t(upto(int(jobs.size())))].client->cancel = true;
        scheduler.step();
      }
      run_out(scheduler);
    }
    for (const Job& job : jobs) {
      EXPECT_EQ(job.client->error, nullptr);
      const auto expected = answer_to(job.prompt, job.wanted);
      ASSERT_LE(job.client->tokens.size(), expected.size());
      EXPECT_TRUE(std::equal(job.client->tokens.begin(), job.client->tokens.end(), expected.begin()));
      if (!job.client->cancel) {
        expect_answer(job);
      }
    }
    for (int g = 0; g < runner.kv().groups(); ++g) EXPECT_EQ(runner.kv().free_blocks(g), all[size_t(g)]);
  }
}

// ---- expert-aware choice -------------------------------------------------------------------------------------------

struct FakeForecast : RoutingForecast {
  std::map<int32_t, std::vector<ExpertKey>> wants;
  std::vector<ExpertKey> resident;
  std::span<const ExpertKey> likely(int32_t sequence) const override {
    const auto it = wants.find(sequence);
    return it == wants.end() ? std::span<const ExpertKey>() : std::span<const ExpertKey>(it->second);
  }
  bool near(ExpertKey key) const override { return std::find(resident.begin(), resident.end(), key) != resident.end(); }
};

TEST(TokenChoice, CoveredTokensGoFirstAndThoseThatShareACopy) {
  FakeForecast f;
  f.resident = {{0, 1}, {0, 2}};
  f.wants[0] = {{0, 5}, {0, 6}};  // two copies
  f.wants[1] = {{0, 1}, {0, 2}};  // none
  f.wants[2] = {{0, 5}, {0, 1}};  // one
  f.wants[3] = {{0, 7}, {0, 2}};  // one
  f.wants[4] = {{0, 5}, {0, 2}};  // one, the same as 2's
  const std::vector<WaitingToken> waiting{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}};
  const auto choose = [&](size_t count) { return choose_tokens(waiting, {count, 9, count, 5, 4}, &f); };
  EXPECT_EQ(choose(1), (std::vector<size_t>{1}));
  EXPECT_EQ(choose(2), (std::vector<size_t>{1, 2}));
  EXPECT_EQ(choose(3), (std::vector<size_t>{1, 2, 4}));     // 4 is free once 2 goes
  EXPECT_EQ(choose(4), (std::vector<size_t>{0, 1, 2, 4}));  // 0 then needs one more, as 3 does
  EXPECT_EQ(choose(9).size(), 5u);
  EXPECT_EQ(choose_tokens(waiting, {2, 9, 2, 0, 4}, &f), (std::vector<size_t>{0, 1}));  // in turn
  EXPECT_EQ(choose_tokens(waiting, {2, 9, 2, 3, 4}, &f), (std::vector<size_t>{1, 2}));  // among three
  EXPECT_EQ(choose_tokens(waiting, {1, 9, 1, 1, 4}, &f), (std::vector<size_t>{0}));
  EXPECT_EQ(choose_tokens(waiting, {2, 9, 2, 5, 4}, nullptr), (std::vector<size_t>{0, 1}));
}

TEST(TokenChoice, AgeWins) {
  FakeForecast f;
  f.wants[0] = {{0, 5}};
  const std::vector<WaitingToken> waiting{{0, 3}, {1, 0}, {2, 2}};
  const auto choose = [&](size_t count, int threshold) {
    return choose_tokens(waiting, {count, 9, count, 3, threshold}, &f);
  };
  EXPECT_EQ(choose(1, 3), (std::vector<size_t>{0}));     // at the threshold: it goes
  EXPECT_EQ(choose(1, 4), (std::vector<size_t>{2}));     // 0 needs a copy; 2 has waited longer than 1
  EXPECT_EQ(choose(2, 3), (std::vector<size_t>{0, 2}));  // and then the next in age
}

// Three tokens that may wait once more, and one a step: the first has to go while all could still wait.
TEST(TokenChoice, AThresholdIsLookedAheadFor) {
  FakeForecast f;
  f.wants[0] = f.wants[1] = f.wants[2] = {{0, 5}};
  const std::vector<WaitingToken> three{{0, 2}, {1, 2}, {2, 2}, {3, 0}}, two{{0, 2}, {1, 2}, {3, 0}};
  EXPECT_EQ(choose_tokens(three, {2, 9, 2, 4, 3}, &f),
            (std::vector<size_t>{0, 3}));  // 1 of 3 has to, 2 fit the next step
  EXPECT_EQ(choose_tokens(three, {2, 9, 1, 4, 3}, &f), (std::vector<size_t>{0, 1}));  // the next takes one: 2 have to
  EXPECT_EQ(choose_tokens(two, {1, 9, 1, 3, 3}, &f), (std::vector<size_t>{0}));
  EXPECT_EQ(choose_tokens(two, {1, 9, 1, 3, 4}, &f), (std::vector<size_t>{2}));
  EXPECT_EQ(choose_tokens(three, {1, 9, 1, 4, 2}, &f), (std::vector<size_t>{0, 1, 2}));  // all three are due
  EXPECT_EQ(choose_tokens(three, {1, 2, 1, 4, 2}, &f), (std::vector<size_t>{0, 1}));     // but two is what fits
}

// More answers under way than a step has rows: all advance, and a prompt finds a row.
TEST(Scheduler, StepsThatAreTooSmallForAllTakeThemInTurn) {
  for (const int window : {0, 64}) {
    FakeRunner runner(kv_of(1024, 8), limits_of(3, 8, 128));
    SchedulerOptions o = options();
    o.token_schedule_window = window;
    Scheduler scheduler(runner, o);
    std::vector<Job> jobs;
    for (int i = 0; i < 8; ++i) jobs.push_back(submit(scheduler, prompt_of(3, i), 30));
    run_out(scheduler);
    for (const Job& job : jobs) expect_answer(job);
    EXPECT_LE(scheduler.stats().longest_deferral, 3);  // two rows beside a prompt, eight tokens
    EXPECT_GT(scheduler.stats().deferred_tokens, 0u);
  }
}

TEST(Scheduler, NoTokenIsPutOffBeyondTheThreshold) {
  for (const int threshold : {1, 2, 5}) {
    FakeRunner runner(kv_of(1024, 8), limits_of(32, 8, 128));
    FakeForecast forecast;
    for (int s = 0; s < 8; ++s) forecast.wants[s] = {{0, s}, {1, s / 2}};
    forecast.resident = {{0, 0}, {0, 1}, {1, 0}};
    SchedulerOptions o = options();
    o.token_schedule_window = 6;
    o.token_schedule_batch = 2;
    o.aging_threshold = threshold;
    Scheduler scheduler(runner, o, &forecast);
    std::vector<Job> jobs;
    for (int i = 0; i < 8; ++i) jobs.push_back(submit(scheduler, prompt_of(3, i), 30));
    run_out(scheduler);
    for (const Job& job : jobs) expect_answer(job);
    EXPECT_LE(scheduler.stats().longest_deferral, threshold);
    EXPECT_GT(scheduler.stats().deferred_tokens, 0u);
  }
}

}  // namespace
}  // namespace ef::testing
