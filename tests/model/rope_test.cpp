// Frequencies and magnitudes of every rope kind. The numbers come from the formulas of Hugging Face's
// modeling_rope_utils, evaluated apart in Python with float64.
#include "expertflow/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace ef {
namespace {

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-12 + 1e-9 * std::fabs(expected[i])) << i;
}

RopeConfig base(RopeKind kind, double theta, int dim) {
  RopeConfig r;
  r.kind = kind;
  r.theta = theta;
  r.rotary_dim = dim;
  return r;
}

TEST(Rope, Default) {
  RopeFrequencies f = rope_frequencies(base(RopeKind::kDefault, 1e6, 16), 512, 10);
  expect_near(f.inv_freq, {1, 0.17782794100389226, 0.031622776601683791, 0.005623413251903491, 0.001,
                           0.00017782794100389227, 3.1622776601683795e-05, 5.6234132519034912e-06});
  EXPECT_EQ(f.magnitude, 1);
}

TEST(Rope, Linear) {
  RopeConfig r = base(RopeKind::kLinear, 10000, 16);
  r.factor = 3;
  expect_near(rope_frequencies(r, 512, 10).inv_freq,
              {0.33333333333333331, 0.10540925533894598, 0.033333333333333333, 0.010540925533894597,
               0.0033333333333333335, 0.0010540925533894597, 0.00033333333333333332, 0.00010540925533894598});
}

TEST(Rope, DynamicGrowsPastTheContext) {
  RopeConfig r = base(RopeKind::kDynamic, 10000, 16);
  r.factor = 2;
  expect_near(rope_frequencies(r, 64, 64).inv_freq, {1, 0.31622776601683794, 0.10000000000000001, 0.031622776601683791,
                                                     0.01, 0.003162277660168379, 0.001, 0.00031622776601683794});
  expect_near(rope_frequencies(r, 64, 130).inv_freq,
              {1, 0.26950110953692524, 0.072630848041633778, 0.019574094133828119, 0.0052752400872468977,
               0.0014216830565867053, 0.00038314516115996438, 0.00010325804604631442});
}

TEST(Rope, Yarn) {
  RopeConfig r = base(RopeKind::kYarn, 10000, 16);
  r.factor = 4, r.original_max_positions = 96, r.mscale = r.mscale_all_dim = 1;
  RopeFrequencies f = rope_frequencies(r, 512, 10);
  expect_near(f.inv_freq, {1, 0.23717082451262847, 0.050000000000000003, 0.0079056941504209478, 0.0025000000000000001,
                           0.00079056941504209474, 0.00025000000000000001, 7.9056941504209485e-05});
  EXPECT_EQ(f.magnitude, 1);
}

TEST(Rope, YarnWithoutTruncation) {
  RopeConfig r = base(RopeKind::kYarn, 150000, 64);
  r.factor = 32, r.original_max_positions = 4096, r.truncate = false;
  RopeFrequencies f = rope_frequencies(r, 131072, 10);
  expect_near(f.inv_freq, {1,
                           0.68904430588816334,
                           0.47478205547690072,
                           0.32714587186423649,
                           0.22541800020287081,
                           0.15532298948448497,
                           0.10702442147781144,
                           0.073744568210260819,
                           0.050813274815461475,
                           0.031705696184663769,
                           0.019335001126540362,
                           0.011592049256286924,
                           0.0067949594897322189,
                           0.0038603593171920685,
                           0.0020937923789696887,
                           0.0010526021013863359,
                           0.00045648391922324086,
                           0.00012931870124506317,
                           3.8308812373753384e-05,
                           2.6396469031472782e-05,
                           1.818833668168956e-05,
                           1.2532569824095001e-05,
                           8.6354958754384803e-06,
                           5.9502392614916046e-06,
                           4.0999784818029795e-06,
                           2.8250668271503398e-06,
                           1.9465962110014815e-06,
                           1.3412910350540445e-06,
                           9.242089502428301e-07,
                           6.3682091461569897e-07,
                           4.3879782508643959e-07,
                           3.0235114281192144e-07});
  EXPECT_NEAR(f.magnitude, 1.3465735902799727, 1e-12);
}

TEST(Rope, Llama3) {
  RopeConfig r = base(RopeKind::kLlama3, 500000, 16);
  r.factor = 8, r.low_freq_factor = 1, r.high_freq_factor = 4, r.original_max_positions = 64;
  expect_near(rope_frequencies(r, 512, 10).inv_freq,
              {1, 0.0794030091792082, 0.0047007538663579916, 0.00091158309215213856, 0.00017677669529663688,
               3.4281021959525912e-05, 6.6478698711812362e-06, 1.2891731721515574e-06});
}

TEST(Rope, B11_LongropeSwitchesAtTheOriginalContext) {
  RopeConfig r = base(RopeKind::kLongrope, 10000, 16);
  r.factor = 8, r.original_max_positions = 64;
  r.short_factor = {1, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6}, r.long_factor = {1, 1.5, 2, 3, 4, 6, 8, 10};
  expect_near(rope_frequencies(r, 512, 64).inv_freq,
              {1, 0.30116930096841704, 0.090909090909090912, 0.026352313834736494, 0.0076923076923076927,
               0.002258769757263128, 0.00066666666666666664, 0.00019764235376052369});
  expect_near(rope_frequencies(r, 512, 65).inv_freq,
              {1, 0.21081851067789195, 0.050000000000000003, 0.010540925533894598, 0.0025000000000000001,
               0.00052704627669472983, 0.000125, 3.1622776601683789e-05});
  EXPECT_NEAR(rope_frequencies(r, 512, 65).magnitude, 1.2247448713915889, 1e-12);
  r.short_mscale = 1.1, r.long_mscale = 1.25;
  EXPECT_EQ(rope_frequencies(r, 512, 64).magnitude, 1.1);
  EXPECT_EQ(rope_frequencies(r, 512, 65).magnitude, 1.25);
}

TEST(Rope, FreqDivisorsReplaceTheRule) {
  RopeConfig r = base(RopeKind::kLlama3, 10000, 8);
  r.freq_divisors = {1, 2, 4, 8};
  r.factor = 99;
  expect_near(rope_frequencies(r, 512, 10).inv_freq, {1, 0.1 / 2, 0.01 / 4, 0.001 / 8});
}

TEST(Rope, YarnMscale) {
  EXPECT_EQ(yarn_mscale(1, 3), 1);
  EXPECT_EQ(yarn_mscale(0.5, 3), 1);
  EXPECT_NEAR(yarn_mscale(40, 0.707), 1.2608037774058554, 1e-12);
}

TEST(Rope, YarnAttentionFactorGivenWins) {
  RopeConfig r = base(RopeKind::kYarn, 10000, 16);
  r.factor = 4, r.original_max_positions = 128, r.mscale = 1, r.mscale_all_dim = 0.5, r.attention_factor = 1.75;
  EXPECT_EQ(rope_frequencies(r, 512, 10).magnitude, 1.75);
  r.attention_factor.reset();
  EXPECT_NEAR(rope_frequencies(r, 512, 10).magnitude, (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-12);
  r.mscale_all_dim = 0;
  EXPECT_NEAR(rope_frequencies(r, 512, 10).magnitude, 0.1 * std::log(4.0) + 1, 1e-12);
}

TEST(Rope, TableFollowsPositionsAndLengths) {
  RopeConfig r = base(RopeKind::kLongrope, 100, 4);
  r.original_max_positions = 8;
  r.short_factor = {1, 2}, r.long_factor = {4, 5};
  r.short_mscale = 1.5, r.long_mscale = 2.0;
  RopeTable table(r, 64);
  const std::vector<int32_t> position{0, 3, 3}, total{8, 8, 9};
  std::vector<float> cos(6), sin(6);
  table.fill(position, total, cos.data(), sin.data());
  EXPECT_FLOAT_EQ(cos[0], 1.5f);
  EXPECT_FLOAT_EQ(sin[0], 0.f);
  EXPECT_FLOAT_EQ(cos[2], float(1.5 * std::cos(3.0)));
  EXPECT_FLOAT_EQ(sin[3], float(1.5 * std::sin(3 * 0.1 / 2)));
  EXPECT_FLOAT_EQ(cos[4], float(2 * std::cos(3.0 / 4)));
  EXPECT_FLOAT_EQ(sin[5], float(2 * std::sin(3 * 0.1 / 5)));
}

}  // namespace
}  // namespace ef
