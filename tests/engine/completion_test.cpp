// What those are told who watch completions: order, times, and the stalls that fall into each phase.
#include "expertflow/engine/completion.h"

#include <gtest/gtest.h>

#include <atomic>

namespace ef {
namespace {

using namespace std::chrono_literals;

class Journal final : public CompletionWatch {
 public:
  void on_start(const CompletionTimes& t) override { said += "start " + std::to_string(t.cached_tokens) + "; "; }
  void on_token(const CompletionTimes& t, Duration since) override {
    said += "token " + std::to_string(t.generated_tokens) + " after " + std::to_string(since / 1ms) + "; ";
  }
  void on_error(const std::exception_ptr&) override { said += "error; "; }
  void on_end(const CompletionTimes& t, const char* finish) override {
    said += std::string("end ") + finish;
    times = t;
  }
  std::string said;
  CompletionTimes times;
};

class CompletionTest : public ::testing::Test {
 protected:
  std::shared_ptr<Completion> make(int64_t max_tokens) {
    CompletionRequest request;
    request.prompt = {1, 2, 3};
    request.max_tokens = max_tokens;
    request.sampler.temperature = 0;
    request.watch = own;
    Completion::Context context;
    context.clock = &clock, context.watch = &all, context.stall_seconds = &stall;
    context.vocab = 4, context.length = 100;
    return std::make_shared<Completion>(request, context, [](CompletionEvent&&) {});
  }
  void step(Completion& c, std::chrono::milliseconds took, double stalled) {
    clock.advance(took);
    stall = stall + stalled;
    c.next({logits, {}, {}});
  }
  ManualClock clock;
  std::atomic<double> stall{7};  // of steps before
  Journal all;
  std::shared_ptr<Journal> own = std::make_shared<Journal>();
  std::vector<float> logits{0, 1, 0, 0};
};

TEST_F(CompletionTest, BothWatchersHearAllOfIt) {
  clock.advance(1ms);
  const auto c = make(3);
  clock.advance(10ms);
  stall = 8;  // while it waited: nothing of its own
  c->on_start(2);
  step(*c, 100ms, 0.5);
  step(*c, 20ms, 0.25);
  step(*c, 30ms, 0.125);
  const std::string expected = "start 2; token 2 after 20; token 3 after 30; end length";
  EXPECT_EQ(all.said, expected);
  EXPECT_EQ(own->said, expected);
  EXPECT_DOUBLE_EQ(all.times.prefill_stall, 0.5);
  EXPECT_DOUBLE_EQ(all.times.decode_stall, 0.375);
  EXPECT_EQ(all.times.started - all.times.submitted, 10ms);
  EXPECT_EQ(all.times.ended - all.times.first_token, 50ms);
}

TEST_F(CompletionTest, AFailureInPrefillHasItsStallThere) {
  clock.advance(1ms);
  const auto c = make(3);
  c->on_start(0);
  stall = stall + 2;
  c->on_error(std::make_exception_ptr(std::runtime_error("x")));
  EXPECT_EQ(own->said, "start 0; error; end error");
  EXPECT_DOUBLE_EQ(own->times.prefill_stall, 2);
  EXPECT_DOUBLE_EQ(own->times.decode_stall, 0);
}

TEST_F(CompletionTest, OneThatNeverStartedHasNoStall) {
  auto c = make(3);
  stall = 20;
  c->cancel();
  EXPECT_TRUE(c->cancelled());
  EXPECT_EQ(own->said, "end abort");
  EXPECT_DOUBLE_EQ(own->times.prefill_stall, 0);
}

}  // namespace
}  // namespace ef
