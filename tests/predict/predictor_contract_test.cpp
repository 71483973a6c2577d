// Every row of the predictor table keeps the contract of predict/predictor.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "tests/predict/predictor_rig.h"
#include "tests/predict/trained_rig.h"
#include "tests/support/test_name.h"

namespace ef::testing {
namespace {

constexpr int kHorizon = 3;

using Made = std::unique_ptr<Predictor>;

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const PredictorInfo& info : predictors()) all.emplace_back(info.name);
  return all;
}

// Everything that a predictor says about one run, in order. By target: a row for each of the look's.
struct Said {
  StepPoint point;
  LayerId layer, target;
  int64_t rows;
  std::vector<float> probabilities;
  bool operator==(const Said&) const = default;
};

class PredictorContract : public ::testing::TestWithParam<std::string> {
 protected:
  // chunk: rows of a step.
  std::vector<Said> run(ModelRig& rig, Predictor& predictor, const std::vector<TokenId>& prompt, size_t chunk,
                        bool together) {
    std::vector<Said> all;
    Looks looks;
    looks.start = [&](const StepStart& start) { predictor.begin_step(start); };
    looks.look = [&](const StepView& view) {
      predictor.observe(view);
      const LayerId end = std::min(LayerId(rig.model().config.layers.size()), view.layer + kHorizon + 1);
      std::vector<LayerId> targets;
      for (LayerId t = view.layer; t < end; ++t)
        if (predictor.covers(view.point, view.layer, t)) targets.push_back(t);
      if (targets.empty()) return;
      const int experts = rig.model().config.router.experts;
      const bool solid = targets.back() - targets.front() + 1 == LayerId(targets.size());
      if (together && solid) {
        predictor.queue(view, targets.front(), targets.back(), rig.stream());
        rig.stream().synchronize();
      }
      for (const LayerId t : targets) {
        std::vector<float> p(size_t(view.rows * experts), NAN);
        if (together && solid)
          predictor.finish(t, p.data());
        else
          predictor.predict(view, t, rig.stream(), p.data());
        all.push_back({view.point, view.layer, t, view.rows, std::move(p)});
      }
    };
    rig.observer = &looks;
    rig.logits(prompt, chunk);
    rig.observer = nullptr;
    return all;
  }
  Made make(ModelRig& rig) {
    trained_ = made_up(rig.model().config, kHorizon, 0.3f);
    return make_predictor(GetParam(), {rig.model(), rig.backend(), 64, kHorizon, &trained_});
  }

  // Whether the fixture has what this kind is about: gate-ahead aside, two sparse layers within the horizon.
  bool made_for(ModelRig& rig) {
    for (const char* any : {"gate-ahead", "gate-ahead-plain", "pre-attention", "trained"})
      if (GetParam() == any) return true;
    return made_up(rig.model().config, kHorizon, 0.3f).has("hybrid");
  }

 private:
  TrainedPredictor trained_;
};

TEST_P(PredictorContract, ProbabilitiesAreInRangeAndCoverWhatTheySay) {
  for (const char* name : {"olmoe", "deepseek_v3", "qwen3_moe-mixed-layers", "phimoe", "gpt_oss"}) {
    ModelRig rig(name);
    if (!made_for(rig)) continue;
    const auto predictor = make(rig);
    const auto said = run(rig, *predictor, goldens(name)[0].ids, 5, false);
    EXPECT_FALSE(said.empty()) << name;
    const Config& config = rig.model().config;
    for (const Said& s : said) {
      EXPECT_TRUE(config.layers[size_t(s.target)].sparse);
      double sum = 0;
      for (const float p : s.probabilities) {
        ASSERT_TRUE(p >= 0 && p <= 1) << name << " layer " << s.layer << " target " << s.target << ": " << p;
        sum += double(p);
      }
      EXPECT_GT(sum, 0) << name;
      const PredictorCost cost = predictor->cost(s.point, s.layer, s.target);
      EXPECT_LE(cost.flops, 1'000'000'000u);
    }
    const LayerId layers = LayerId(config.layers.size());
    for (const StepPoint point : {StepPoint::kLayerInput, StepPoint::kRouted})
      for (LayerId layer = 0; layer < layers; ++layer) {
        EXPECT_FALSE(predictor->covers(point, layer, layer - 1));
        EXPECT_FALSE(predictor->covers(point, layer, layers));
        EXPECT_FALSE(predictor->covers(point, layer, layer + kHorizon + 1));
      }
  }
}

TEST_P(PredictorContract, TheSameAgainAndTargetsTogetherAsOneByOne) {
  ModelRig rig("olmoe");
  const auto prompt = goldens("olmoe")[0].ids;
  const auto once = run(rig, *make(rig), prompt, 5, false);
  EXPECT_EQ(once, run(rig, *make(rig), prompt, 5, false));
  EXPECT_EQ(once, run(rig, *make(rig), prompt, 5, true));
}

TEST_P(PredictorContract, NameAndParametersAreItsOwn) {
  ModelRig rig("mixtral");
  const auto predictor = make(rig);
  EXPECT_EQ(predictor->name(), GetParam());
  for (const PredictorInfo& info : predictors()) {
    if (info.name != GetParam()) continue;
    EXPECT_EQ(info.trained, predictor->parameters() > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, PredictorContract, ::testing::ValuesIn(names()),
                         [](const auto& info) { return ef::testing::test_name(info.param); });

// Without a correction the hybrid is gate-ahead: the same experts first, at every distance.
TEST(Hybrid, WithNothingLearnedItIsGateAhead) {
  for (const char* name : {"olmoe", "deepseek_v2", "gpt_oss"}) {
    ModelRig rig(name);
    const Config& config = rig.model().config;
    const TrainedPredictor nothing = made_up(config, kHorizon, 0.f);
    const PredictorContext context{rig.model(), rig.backend(), 64, kHorizon, &nothing};
    const auto gate = make_predictor("gate-ahead", context), hybrid = make_predictor("hybrid", context);
    int64_t rows = 0, same = 0;
    Looks looks;
    looks.start = [&](const StepStart& start) { hybrid->begin_step(start); };
    looks.look = [&](const StepView& view) {
      hybrid->observe(view);
      const int experts = config.router.experts;
      for (LayerId t = view.layer; t < LayerId(config.layers.size()); ++t) {
        if (!hybrid->covers(view.point, view.layer, t)) continue;
        std::vector<float> a(size_t(view.rows * experts)), b(a.size());
        gate->predict(view, t, rig.stream(), a.data());
        hybrid->predict(view, t, rig.stream(), b.data());
        for (size_t i = 0; i < a.size(); ++i) ++rows, same += (a[i] > 0.5f) == (b[i] > 0.5f);
      }
    };
    rig.observer = &looks;
    rig.logits(goldens(name)[0].ids, 7);
    EXPECT_GT(rows, 0) << name;
    EXPECT_GE(double(same), 0.97 * double(rows)) << name;  // a near-tie may fall the other way: heads have 8 bits
  }
}

// A file whose heads reach less far than it is asked, from one look: the forest answers beyond them, and where there is
// none or it covers nothing gate-ahead.
void parts_take_turns(bool with_forest) {
  ModelRig rig("olmoe");
  const Config& config = rig.model().config;
  TrainedPredictor near = made_up(config, 1, 0.3f);
  const PredictorContext context{rig.model(), rig.backend(), 64, kHorizon, &near};
  const auto gate = make_predictor("gate-ahead", context);
  const auto beyond = make_predictor(with_forest ? "forest" : "gate-ahead", context);
  if (!with_forest) near.tensors.erase("forest.nodes");
  const auto set = make_predictor("trained", context);
  int compared = 0;
  Looks looks;
  looks.start = [&](const StepStart& start) { set->begin_step(start), beyond->begin_step(start); };
  looks.look = [&](const StepView& view) {
    set->observe(view), beyond->observe(view);
    const LayerId last = std::min(LayerId(config.layers.size()) - 1, view.layer + kHorizon);
    if (view.point != StepPoint::kRouted) return;
    set->queue(view, view.layer, last, rig.stream());
    gate->queue(view, view.layer, view.layer, rig.stream());
    if (last > view.layer) beyond->queue(view, view.layer + 1, last, rig.stream());
    rig.stream().synchronize();
    for (LayerId t = view.layer; t <= last; ++t) {
      if (t == view.layer + 1) continue;  // the hybrid's
      std::vector<float> a(size_t(view.rows * config.router.experts)), b(a.size());
      set->finish(t, a.data());
      (t == view.layer ? gate : beyond)->finish(t, b.data());
      EXPECT_EQ(a, b) << view.layer << " " << t;
      ++compared;
    }
  };
  rig.observer = &looks;
  rig.logits(goldens("olmoe")[0].ids, 7);
  EXPECT_GT(compared, 0);
}
TEST(TrainedSet, PartsTakeTurns) {
  parts_take_turns(false);
  parts_take_turns(true);
}

// The self-test of the rule: asked about the layer itself, it must be that layer's router.
TEST(GateAhead, AtDistanceZeroItIsTheRouterExactly) {
  for (const char* name : {"mixtral", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe", "qwen3_moe-mixed-layers",
                           "gpt_oss", "phimoe", "granitemoe"}) {
    ModelRig rig(name);
    const auto predictor = make_predictor("gate-ahead", {rig.model(), rig.backend(), 64, 0});
    const Config& config = rig.model().config;
    const int experts = config.router.experts, top_k = config.router.top_k;
    int64_t rows = 0;
    Looks looks;
    looks.look = [&](const StepView& view) {
      if (view.point != StepPoint::kRouted) return;
      std::vector<float> p(size_t(view.rows * experts));
      predictor->predict(view, view.layer, rig.stream(), p.data());
      for (int64_t r = 0; r < view.rows; ++r, ++rows) {
        std::vector<int32_t> wanted(view.chosen.begin() + r * top_k, view.chosen.begin() + (r + 1) * top_k);
        std::vector<int32_t> likely;
        for (int32_t e = 0; e < experts; ++e)
          if (p[size_t(r * experts + e)] > 0.5f) likely.push_back(e);
        std::sort(wanted.begin(), wanted.end());
        ASSERT_EQ(likely, wanted) << name << " layer " << view.layer << " row " << r;
      }
    };
    rig.observer = &looks;
    rig.logits(goldens(name)[0].ids, 7);
    EXPECT_GT(rows, 0) << name;
  }
}

TEST(Predictors, UnknownNamesAndMissingFilesAreRefused) {
  ModelRig rig("mixtral");
  const PredictorContext context{rig.model(), rig.backend(), 1, 1};
  try {
    make_predictor("oracle", context);
    FAIL() << "made a predictor that does not exist";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("'oracle': unknown; known are gate-ahead"), std::string::npos) << e.what();
  }
  for (const PredictorInfo& info : predictors()) {
    if (!info.trained) continue;
    EXPECT_THROW(make_predictor(info.name, context), ConfigError) << info.name;
  }
}

}  // namespace
}  // namespace ef::testing
