// Every row of the forecasts' table keeps the contract of replay/forecast.h.
#include "expertflow/replay/forecast.h"
#include "tests/support/test_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ef {
namespace {

constexpr int kLayers = 5, kExperts = 12, kTopK = 3, kSteps = 30;
constexpr LayerId kDense = 2;  // has no experts

// Steps of 1 to 3 rows. What comes after layer `until_layer` of step `until_step` is drawn with another seed.
Workload workload_of(size_t until_step, LayerId until_layer, uint64_t seed_after) {
  auto trace = std::make_shared<Trace>();
  trace->header.model = "drawn";
  trace->header.hidden = 1;
  trace->header.top_k = trace->header.candidates = kTopK;
  for (LayerId l = 0; l < kLayers; ++l) trace->header.layers.push_back({l == kDense ? 0 : kExperts, 4096});
  std::mt19937_64 before(1), after(seed_after);
  for (size_t s = 0; s < kSteps; ++s) {
    TraceStep step;
    step.step = s + 1;
    for (size_t row = 0; row < 1 + s % 3; ++row) step.rows.push_back({row, 1, int32_t(s)});
    for (LayerId l = 0; l < kLayers; ++l) {
      auto& random = s < until_step || (s == until_step && l <= until_layer) ? before : after;
      TraceLayer layer;
      layer.compute_ns = 1000;
      for (size_t row = 0; l != kDense && row < step.rows.size(); ++row) {
        const auto first = uint16_t(random() % 4 * 3);  // some follow others more often than by chance
        const auto stride = int(1 + random() % 2);
        for (int k = 0; k < kTopK; ++k) layer.chosen.push_back(uint16_t((first + k * stride) % kExperts));
      }
      step.layers.push_back(std::move(layer));
    }
    trace->steps.push_back(std::move(step));
  }
  return make_workload(trace, {});
}

// All that is said until the look after layer `until_layer` of step `until_step`, asked for as a replay does.
std::vector<float> said(const ForecastInfo& info, const Workload& w, size_t until_step, LayerId until_layer) {
  const auto forecast = info.make(w);
  std::vector<float> all, p(kExperts);
  const auto ask = [&](size_t step, LayerId layer) {
    for (LayerId target = layer + 1; target < kLayers; ++target) {
      if (target == kDense) continue;
      p.assign(kExperts, -1.f);  // must be written
      forecast->predict(step, layer, target, p);
      all.insert(all.end(), p.begin(), p.end());
    }
  };
  for (size_t step = 0; step <= until_step; ++step) {
    ask(step, -1);
    for (LayerId layer = 0; layer < kLayers; ++layer) {
      if (step == until_step && layer > until_layer) break;
      if (layer == kDense) continue;
      forecast->observe(step, layer);
      ask(step, layer);
    }
  }
  return all;
}

class ForecastContract : public ::testing::TestWithParam<std::string_view> {
 protected:
  const ForecastInfo& info() const {
    const auto all = forecasts();
    return *std::find_if(all.begin(), all.end(), [](const ForecastInfo& i) { return i.name == GetParam(); });
  }
};

TEST_P(ForecastContract, SaysProbabilities) {
  for (const float p : said(info(), workload_of(kSteps, 0, 2), kSteps - 1, kLayers - 1)) {
    ASSERT_GE(p, 0.f);
    ASSERT_LE(p, 1.f);
  }
}

TEST_P(ForecastContract, IsDeterministicAndAskingHasNoEffect) {
  const Workload w = workload_of(kSteps, 0, 2);
  const auto once = said(info(), w, kSteps - 1, kLayers - 1);
  EXPECT_EQ(said(info(), w, kSteps - 1, kLayers - 1), once);
  const auto forecast = info().make(w);
  std::vector<float> first(kExperts), second(kExperts);
  for (size_t step = 0; step < kSteps; ++step)
    for (const LayerId layer : {0, 1, 3, 4}) {
      forecast->observe(step, layer);
      if (layer == 4) continue;
      forecast->predict(step, layer, 4, first);
      forecast->predict(step, -1, 0, second);
      forecast->predict(step, layer, 4, second);
      ASSERT_EQ(first, second) << step << ", " << layer;
    }
}

// Two runs that differ after a moment have had the same said of them until then. The oracle alone sees further.
TEST_P(ForecastContract, DoesNotKnowWhatComes) {
  for (const size_t step : {size_t(0), size_t(7), size_t(20)})
    for (const LayerId layer : {0, 1, 3}) {
      const auto one = said(info(), workload_of(step, layer, 2), step, layer);
      const auto other = said(info(), workload_of(step, layer, 3), step, layer);
      EXPECT_EQ(one == other, GetParam() != "oracle") << step << ", " << layer;
    }
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> out;
  for (const ForecastInfo& info : forecasts()) out.push_back(info.name);
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, ForecastContract, ::testing::ValuesIn(names()),
                         [](const auto& info) { return ef::testing::test_name(info.param); });

}  // namespace
}  // namespace ef
