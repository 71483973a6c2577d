// Many answers at once from one engine: each is what it would be alone. Greedy tokens come from Hugging Face (golden
// files).
#include "expertflow/engine/engine_loop.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

const Log kQuiet(LogLevel::kOff, nullptr);

EngineOptions options_for(int parallel, const std::string& budget = "100%") {
  EngineOptions o = small_engine(budget);
  o.parallel = parallel;
  o.ctx_size = 256 * std::min(parallel, 4);
  o.ubatch = 64;
  return o;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::string error;
};

class Asked {
 public:
  Completion::Sink sink() {
    return [this](CompletionEvent&& event) {
      for (const TokenReport& t : event.tokens) answer_.tokens.push_back(t.token);
      if (event.error) {
        try {
          std::rethrow_exception(event.error);
        } catch (const std::exception& e) {
          answer_.error = e.what();
        }
      }
      if (event.last()) done_.set_value();
    };
  }
  Answer wait() {
    done_.get_future().get();
    return answer_;
  }

 private:
  Answer answer_;
  std::promise<void> done_;
};

CompletionRequest greedy(const std::vector<TokenId>& prompt, int64_t count) {
  CompletionRequest r;
  r.prompt = prompt;
  r.max_tokens = count;
  r.sampler.temperature = 0;
  return r;
}

TEST(EngineLoop, TokensAreTheGoldenOnesWithOneAndWithEightNeighbours) {
  const auto cases = goldens("mixtral");
  for (const int neighbours : {0, 1, 8})
    for (const char* budget : {"100%", "min"}) {
      auto engine = engine_of("mixtral", options_for(neighbours + 1, budget));
      EngineLoop loop(*engine, nullptr, {}, kQuiet);
      std::vector<std::unique_ptr<Asked>> asked;
      for (int i = 0; i <= neighbours; ++i) {
        asked.push_back(std::make_unique<Asked>());
        const GoldenCase& c = cases[size_t(i) % cases.size()];
        loop.submit({greedy(c.ids, int64_t(c.greedy.size()))}, {asked.back()->sink()});
      }
      for (int i = 0; i <= neighbours; ++i)
        EXPECT_EQ(asked[size_t(i)]->wait().tokens, cases[size_t(i) % cases.size()].greedy)
            << neighbours << " neighbours, " << budget << ", answer " << i;
    }
}

TEST(EngineLoop, WhoRunsIsSeenDuringTheFirstStep) {
  auto engine = engine_of("mixtral", options_for(2));
  EngineLoop* started = nullptr;
  std::vector<EngineLoop::Snapshot> seen;  // written by the loop's thread before the answer ends
  LoopOptions options;
  options.before_step = [&](const Batch&) { seen.push_back(started->snapshot()); };
  EngineLoop loop(*engine, nullptr, options, kQuiet);
  started = &loop;
  const GoldenCase c = goldens("mixtral").front();
  Asked asked;
  loop.submit({greedy(c.ids, 1)}, {asked.sink()});
  asked.wait();
  loop.stop();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].scheduler.running, 1);
  EXPECT_EQ(seen[0].scheduler.waiting, 0);
  ASSERT_EQ(seen[0].slots.size(), 2u);
  EXPECT_EQ(std::count_if(seen[0].slots.begin(), seen[0].slots.end(),
                          [&](const auto& slot) { return slot.prompt_tokens == int64_t(c.ids.size()); }),
            1);
}

TEST(EngineLoop, AWindowedModelSharesPrefixesExactly) {
  const auto cases = goldens("gpt_oss");
  auto engine = engine_of("gpt_oss", options_for(3));
  EngineLoop loop(*engine, nullptr, {}, kQuiet);
  for (int round = 0; round < 2; ++round)
    for (const GoldenCase& c : cases) {
      Asked asked;
      loop.submit({greedy(c.ids, int64_t(c.greedy.size()))}, {asked.sink()});
      EXPECT_EQ(asked.wait().tokens, c.greedy);
    }
  EXPECT_GT(loop.snapshot().scheduler.prefix.hit_tokens, 0u);
}

TEST(EngineLoop, ExpertAwareSchedulingChangesNoToken) {
  const auto cases = goldens("mixtral");
  auto engine = engine_of("mixtral", options_for(6, "2 slots"));
  LoopOptions options;
  options.scheduler.token_schedule_window = 6;
  options.scheduler.token_schedule_batch = 2;
  options.scheduler.aging_threshold = 3;
  EngineLoop loop(*engine, nullptr, options, kQuiet);
  std::vector<std::unique_ptr<Asked>> asked;
  for (int i = 0; i < 6; ++i) {
    asked.push_back(std::make_unique<Asked>());
    const GoldenCase& c = cases[size_t(i) % cases.size()];
    loop.submit({greedy(c.ids, int64_t(c.greedy.size()))}, {asked.back()->sink()});
  }
  for (int i = 0; i < 6; ++i) EXPECT_EQ(asked[size_t(i)]->wait().tokens, cases[size_t(i) % cases.size()].greedy);
  const SchedulerStats stats = loop.snapshot().scheduler;
  EXPECT_GT(stats.deferred_tokens, 0u);
  EXPECT_LE(stats.longest_deferral, 3);
}

TEST(EngineLoop, WhatFindsASlotDoesNotCountAsWaiting) {
  const auto cases = goldens("mixtral");
  auto engine = engine_of("mixtral", options_for(4));
  LoopOptions options;
  options.max_queue = 1;
  EngineLoop loop(*engine, nullptr, options, kQuiet);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Asked>> asked;
    for (int i = 0; i < 4; ++i) {
      asked.push_back(std::make_unique<Asked>());
      loop.submit({greedy(cases[0].ids, 2)}, {asked.back()->sink()});
    }
    for (auto& one : asked) EXPECT_EQ(one->wait().tokens.size(), 2u);
    while (loop.snapshot().scheduler.running > 0) std::this_thread::yield();  // the slots are free again
    loop.between_steps([](Engine&) {});
  }
}

TEST(EngineLoop, AFullQueueIsRefusedAndWhatWaitsIsAnswered) {
  const auto cases = goldens("mixtral");
  auto engine = engine_of("mixtral", options_for(1));
  LoopOptions options;
  options.max_queue = 2;
  std::promise<void> go;
  auto gate = go.get_future().share();
  options.before_step = [gate](const Batch&) { gate.wait(); };
  EngineLoop loop(*engine, nullptr, options, kQuiet);
  std::vector<std::unique_ptr<Asked>> asked;
  int refused = 0;
  for (int i = 0; i < 8; ++i) {
    asked.push_back(std::make_unique<Asked>());
    try {
      loop.submit({greedy(cases[0].ids, 2)}, {asked.back()->sink()});
    } catch (const BusyError&) {
      ++refused;
      asked.pop_back();
    }
  }
  EXPECT_GE(refused, 5);  // two wait, and one may have been taken in
  go.set_value();
  for (auto& one : asked) EXPECT_EQ(one->wait().tokens.size(), 2u);
}

TEST(EngineLoop, EndingItFailsWhatIsUnderWay) {
  const auto cases = goldens("mixtral");
  auto engine = engine_of("mixtral", options_for(1));
  auto loop = std::make_unique<EngineLoop>(*engine, nullptr, LoopOptions{}, kQuiet);
  Asked first, second;
  loop->submit({greedy(cases[0].ids, 200)}, {first.sink()});
  loop->submit({greedy(cases[0].ids, 200)}, {second.sink()});
  loop.reset();
  EXPECT_EQ(second.wait().error, "the server is shutting down");
}

}  // namespace
}  // namespace ef::testing
