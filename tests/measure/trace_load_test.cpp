// A trace of a few tokens, worked out by hand.
#include "expertflow/measure/trace_load.h"

#include <gtest/gtest.h>

#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/measure/heat_map.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

// Layers: 0 dense, 1 and 2 with four experts, top-2. Each token is a step; choices of layer 1, then of layer 2.
class TraceLoadTest : public ::testing::Test {
 protected:
  TraceLoad load(const std::vector<std::pair<std::vector<uint16_t>, std::vector<uint16_t>>>& choices) {
    TraceHeader header;
    header.model = "tiny", header.fingerprint = "0123456789abcdef";
    header.hidden = 4, header.top_k = 2, header.candidates = 4;
    header.layers = {{0, 0}, {4, 64}, {4, 64}};
    const auto path = folder.path / "t.trace";
    TraceWriter writer(path, header);
    for (size_t i = 0; i < choices.size(); ++i) {
      TraceStep step;
      step.step = i + 1;
      step.rows = {{7, TokenId(i), int32_t(i)}};
      step.layers.resize(3);
      step.layers[1] = layer(choices[i].first);
      step.layers[2] = layer(choices[i].second);
      writer.write(step);
    }
    writer.close();
    TraceReader reader(path);
    return load_of(reader);
  }
  static TraceLayer layer(const std::vector<uint16_t>& chosen) {
    TraceLayer l;
    l.candidates = {0, 1, 2, 3};
    l.probabilities = {40000, 20000, 4000, 1000};
    l.chosen = chosen;
    return l;
  }
  TempFolder folder;
};

TEST_F(TraceLoadTest, LoadAndBalance) {
  // Layer 1: expert 0 in all four steps, 1 in two, 2 and 3 in one. Layer 2: equal load.
  const TraceLoad t = load({{{0, 1}, {0, 1}}, {{0, 1}, {2, 3}}, {{0, 2}, {0, 1}}, {{3, 0}, {3, 2}}});
  EXPECT_EQ(t.steps, 4u);
  EXPECT_EQ(t.rows, 4u);
  EXPECT_EQ(t.requests, 1u);
  EXPECT_EQ(t.accesses, 16u);
  EXPECT_EQ(t.experts, 8u);
  ASSERT_EQ(t.layers.size(), 2u);
  const LayerLoad& a = t.layers[0];
  EXPECT_EQ(a.layer, 1);
  EXPECT_EQ(a.rows, (std::vector<uint64_t>{4, 2, 1, 1}));
  EXPECT_NEAR(a.entropy, 1.75, 1e-12) << "1/2, 1/4, 1/8, 1/8";
  EXPECT_NEAR(a.entropy_share, 0.875, 1e-12);
  EXPECT_NEAR(a.variation, std::sqrt(6. / 4) / 2, 1e-12) << "4, 2, 1, 1 around 2";
  EXPECT_NEAR(a.expected_shared, 1 + 0.25 + 2 * 0.0625, 1e-12);
  EXPECT_NEAR(a.uniform_shared, 1, 1e-12);
  EXPECT_NEAR(a.neighbour_shared, (2 + 1 + 1) / 3., 1e-12);
  const LayerLoad& b = t.layers[1];
  EXPECT_NEAR(b.entropy_share, 1, 1e-12);
  EXPECT_NEAR(b.variation, 0, 1e-12);
  EXPECT_NEAR(b.neighbour_shared, 0, 1e-12);
  EXPECT_EQ(b.median_gap, 2);
  // One row asks for two experts of each layer; so many that all are sure to come: four.
  EXPECT_NEAR(t.expected_distinct(1), 2, 1e-12);
  EXPECT_NEAR(t.expected_distinct(1000), 4, 1e-9);
}

TEST_F(TraceLoadTest, ReuseDistances) {
  // Events: 1:{0,1} 2:{0,1} 1:{0,2} 2:{0,1} 1:{1,2} 2:{3,0}
  const TraceLoad t = load({{{0, 1}, {0, 1}}, {{0, 2}, {0, 1}}, {{1, 2}, {3, 0}}});
  // 1.0 again: 1.1, 2.0, 2.1 since (at most: it was counted before 1.1 of its own event): 3.
  // 2.0: 2.1, then 1.0, 1.2: 3. 2.1: 1.0, 1.2: 2.
  // 1.1 in the third step: 2.0, 2.1, 1.0, 1.2: 4. 1.2: 2.0, 2.1: 2.
  // 2.0: 2.1, 1.1, 1.2: 3.
  EXPECT_EQ(t.reuse, (std::vector<uint32_t>{2, 2, 3, 3, 3, 4}));
  EXPECT_EQ(t.first_uses, 6u);
  EXPECT_EQ(t.reuse_percentile(0.5), 3u);
  EXPECT_EQ(t.reuse_percentile(1), 4u);
  EXPECT_NEAR(t.lru_hit_rate(2), 0, 1e-12);
  EXPECT_NEAR(t.lru_hit_rate(3), 2. / 12, 1e-12);
  EXPECT_NEAR(t.lru_hit_rate(4), 5. / 12, 1e-12);
  EXPECT_NEAR(t.lru_hit_rate(8), 6. / 12, 1e-12);
}

// Beside a plain list that is searched: the tree of counts is numbered anew many times.
TEST_F(TraceLoadTest, ManyReusesAreThoseOfAPlainList) {
  std::vector<std::pair<std::vector<uint16_t>, std::vector<uint16_t>>> choices;
  uint32_t random = 1;
  const auto next = [&] { return uint16_t((random = random * 1664525 + 1013904223) >> 30); };
  for (int i = 0; i < 3000; ++i) {
    const uint16_t a = next(), b = next();
    choices.push_back({{a, uint16_t((a + 1 + next() % 3) % 4)}, {b, uint16_t((b + 1 + next() % 3) % 4)}});
  }
  std::vector<int> recent;  // latest first; keys are layer * 4 + expert
  std::vector<uint32_t> expected;
  for (const auto& [one, two] : choices)
    for (int l = 0; l < 2; ++l) {
      std::vector<int> event;
      for (const uint16_t e : l == 0 ? one : two) event.push_back(l * 4 + e);
      std::sort(event.begin(), event.end());
      for (const int key : event) {
        const auto it = std::find(recent.begin(), recent.end(), key);
        if (it != recent.end()) expected.push_back(uint32_t(it - recent.begin()));
      }
      for (const int key : event) {
        recent.erase(std::remove(recent.begin(), recent.end(), key), recent.end());
        recent.insert(recent.begin(), key);
      }
    }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(load(choices).reuse, expected);
}

HeatMap small_map() {
  HeatMap map;
  map.title = "a < b & c";
  map.value_name = "tokens";
  map.rows = {3, 5};
  map.values = {{0, 4}, {2, 0, 1}};
  return map;
}

TEST(HeatMap, SvgHasACellForEachNumber) {
  const std::string svg = heat_map_svg(small_map());
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  size_t cells = 0;
  for (size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++cells;
  EXPECT_EQ(cells, 5u);
  EXPECT_NE(svg.find("fill=\"#fcfdbf\"><title>layer 3, expert 1: 4 tokens</title>"), std::string::npos) << svg;
  EXPECT_NE(svg.find("fill=\"#000004\"><title>layer 3, expert 0: 0 tokens</title>"), std::string::npos);
}

TEST(HeatMap, FilesGoByTheirNames) {
  const TempFolder folder;
  write_heat_map(small_map(), folder.path / "m.svg");
  EXPECT_EQ(read_text_file(folder.path / "m.svg"), heat_map_svg(small_map()));
  EXPECT_THROW(write_heat_map(small_map(), folder.path / "m.jpg"), ConfigError);
  if (!can_write_png()) {
    EXPECT_THROW(write_heat_map(small_map(), folder.path / "m.png"), ConfigError);
    return;
  }
  write_heat_map(small_map(), folder.path / "m.png");
  const std::string png = read_text_file(folder.path / "m.png");
  ASSERT_GT(png.size(), 33u);
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  const auto number = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | uint8_t(png[at + i]);
    return value;
  };
  EXPECT_EQ(number(16), 3u * 14) << "width: three columns of 14 pixels";
  EXPECT_EQ(number(20), 2u * 14);
}

}  // namespace
}  // namespace ef::testing
