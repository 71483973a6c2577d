#include "expertflow/trace/trace_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "expertflow/base/errors.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ef {
namespace {

namespace fs = std::filesystem;

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "ef-trace-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "run.trace";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path folder_, path_;
};

// Three layers, the first dense, the last with more experts than a byte counts.
TraceHeader small_header(bool hidden_states) {
  TraceHeader h;
  h.model = "small";
  h.fingerprint = "00ff";
  h.hidden = 3, h.top_k = 2, h.candidates = 3, h.hidden_states = hidden_states;
  h.layers = {{0, 0}, {4, 100}, {300, 260}};
  return h;
}

TraceStep small_step(uint64_t number, bool hidden_states) {
  TraceStep s;
  s.step = number;
  s.phase = TracePhase::kPrefill;
  s.rows = {{7, 11, 0}, {7, -1, 1}};
  s.layers.resize(3);
  s.layers[0].compute_ns = 5;
  s.layers[1] = {1000, 20, {3, 0, 1, 2, 1, 0}, {65535, 0, 0, 40000, 20000, 5000}, {3, 0, 1, 2}, {}};
  s.layers[2] = {2000, 0, {299, 0, 256, 5, 6, 7}, {3, 2, 1, 9, 8, 7}, {299, 256, 6, 5}, {}};
  if (hidden_states)
    for (size_t i = 1; i < 3; ++i) s.layers[i].x = {0x3c00, 0xbc00, 1, 2, 3, uint16_t(number)};
  return s;
}

std::vector<TraceStep> read_all(const std::string& bytes) {
  TraceReader reader(std::make_shared<MemorySource>("t", std::as_bytes(std::span(bytes))));
  std::vector<TraceStep> steps;
  TraceStep step;
  while (reader.next(step)) steps.push_back(step);
  EXPECT_FALSE(reader.next(step));
  return steps;
}

std::string error_of(const std::string& bytes) {
  try {
    read_all(bytes);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

TEST_F(TraceFile, ComesBackAsItWasWritten) {
  for (const bool hidden : {false, true}) {
    TraceWriter writer(path_, small_header(hidden));
    writer.write(small_step(3, hidden));
    writer.write(small_step(4, hidden));
    EXPECT_EQ(writer.steps(), 2u);
    EXPECT_EQ(writer.rows(), 4u);
    writer.close();
    EXPECT_EQ(writer.bytes(), fs::file_size(path_));
    const Trace trace = read_trace(path_);
    EXPECT_EQ(trace.header, small_header(hidden));
    ASSERT_EQ(trace.steps.size(), 2u);
    EXPECT_EQ(trace.steps[0], small_step(3, hidden));
    EXPECT_EQ(trace.steps[1], small_step(4, hidden));
    EXPECT_EQ(trace.rows(), 4u);
    EXPECT_TRUE(read_trace(path_, false).steps[1].layers[2].x.empty());
  }
}

// By docs/traces.md: 12 bytes of front; the header block 20 + (4+5) + (4+4) + 20 + 3 * 12; a step 20 + 13 + 2 * 16 +
// 3 * 16 + [2 rows of 3 + 6 + 2 bytes] + [2 rows of 6 + 6 + 4 bytes]; the end 20 + 16.
TEST_F(TraceFile, HasTheDocumentedSize) {
  TraceWriter writer(path_, small_header(false));
  writer.write(small_step(1, false));
  writer.close();
  EXPECT_EQ(fs::file_size(path_), 12u + 93u + (20 + 13 + 32 + 48 + 22 + 32) + 36u);
  const std::string file = bytes();
  EXPECT_EQ(file.substr(0, 8), "EFTRACE\n");
  EXPECT_EQ(file.substr(8, 8), std::string("\1\0\0\0HADR", 8));
  EXPECT_EQ(file.substr(file.size() - 36, 4), "END!");
}

TEST_F(TraceFile, IsNothingUntilItIsClosed) {
  {
    TraceWriter writer(path_, small_header(false));
    writer.write(small_step(1, false));
    EXPECT_FALSE(fs::exists(path_));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(TraceFile, RefusesStepsThatDoNotFit) {
  TraceWriter writer(path_, small_header(false));
  writer.write(small_step(5, false));
  const auto refused = [&](auto&& change, const std::string& message) {
    TraceStep step = small_step(6, false);
    change(step);
    try {
      writer.write(step);
      ADD_FAILURE() << message;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused([](TraceStep& s) { s.step = 5; }, "expected more than 5");
  refused([](TraceStep& s) { s.rows.clear(); }, "rows: expected 1 to");
  refused([](TraceStep& s) { s.layers.pop_back(); }, "layers: expected 3, found 2");
  refused([](TraceStep& s) { s.layers[1].chosen.pop_back(); }, "layer 1: chosen experts: expected 4, found 3");
  refused([](TraceStep& s) { s.layers[1].candidates[2] = 4; }, "candidate 2 of row 0: expected an expert below 4");
  refused([](TraceStep& s) { s.layers[2].chosen[3] = 6; }, "row 1: expected distinct experts, found 6 twice");
  refused([](TraceStep& s) { s.layers[0].chosen = {1}; }, "layer 0: chosen experts: expected 0, found 1");
  refused([](TraceStep& s) { s.layers[1].x = {1}; }, "hidden states: expected 0, found 1");
}

TEST_F(TraceFile, RefusesImpossibleHeaders) {
  const auto refused = [&](auto&& change) {
    TraceHeader header = small_header(false);
    change(header);
    EXPECT_THROW(TraceWriter(path_, header), ConfigError);
    EXPECT_TRUE(fs::is_empty(folder_));
  };
  refused([](TraceHeader& h) { h.layers.clear(); });
  refused([](TraceHeader& h) { h.hidden = 0; });
  refused([](TraceHeader& h) { h.top_k = 0; });
  refused([](TraceHeader& h) { h.candidates = 1; });
  refused([](TraceHeader& h) { h.layers[1].experts = 2; });
  refused([](TraceHeader& h) { h.layers[1].slot_bytes = 0; });
  refused([](TraceHeader& h) { h.layers[2].experts = 65537; });
}

TEST_F(TraceFile, RefusesEachTruncationAndEachFlippedByte) {
  TraceWriter writer(path_, small_header(true));
  writer.write(small_step(1, true));
  writer.write(small_step(2, true));
  writer.close();
  const std::string whole = bytes();
  ASSERT_EQ(read_all(whole).size(), 2u);
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(error_of(whole.substr(0, size)), "") << size;
  for (size_t at = 0; at < whole.size(); ++at)
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = char(damaged[at] ^ flip);
      EXPECT_NE(error_of(damaged).find("t: offset "), std::string::npos) << at;
    }
  EXPECT_NE(error_of(whole + "x").find("expected the file's end, found 1 more bytes"), std::string::npos);
}

TEST_F(TraceFile, NamesWhatItFoundInstead) {
  EXPECT_NE(error_of("short").find("found 5 bytes"), std::string::npos);
  EXPECT_NE(error_of("GGUF, and whatever follows it").find("another kind of file"), std::string::npos);
  EXPECT_NE(error_of(std::string("EFTRACE\n\2\0\0\0", 12)).find("trace version: expected 1, found 2"),
            std::string::npos);
}

// What a checksum does not catch: bytes that somebody wrote on purpose. The checksum is made right again.
TEST_F(TraceFile, RefusesLiesWithRightChecksums) {
  TraceWriter writer(path_, small_header(false));
  writer.write(small_step(1, false));
  writer.close();
  const std::string whole = bytes();
  const size_t step = whole.find("STEP"), end = whole.find("END!");
  const auto lie = [&](size_t block, size_t at, uint8_t value) {
    std::string text = whole;
    text[block + 12 + at] = char(value);
    const size_t size = (block == step ? end : whole.size()) - block - 8;
    const uint64_t sum = XXH3_64bits(text.data() + block, size);
    std::memcpy(text.data() + block + size, &sum, 8);
    return error_of(text);
  };
  EXPECT_EQ(lie(step, 0, 1), "");  // the number that it has
  EXPECT_NE(lie(step, 8, 3).find("phase: expected 0 to 2, found 3"), std::string::npos);
  EXPECT_NE(lie(step, 9, 0).find("rows: expected 1 to"), std::string::npos);
  EXPECT_NE(lie(step, 9, 3).find("3 rows: expected"), std::string::npos);
  EXPECT_NE(lie(step, 12, 255).find("rows: expected 1 to"), std::string::npos);
  EXPECT_NE(lie(step, 13 + 32 + 16 + 16, 4).find("layer 1: candidate 0 of row 0: expected an expert below 4, found 4"),
            std::string::npos);
  EXPECT_NE(lie(end, 0, 2).find("expected 2 steps of 2 rows, found 1 of 2"), std::string::npos);
}

TEST(Trace, TakesTheMostProbableOfARow) {
  TraceHeader header;
  header.candidates = 3;
  TraceLayer layer;
  const std::vector<float> p = {0.1f, 0.5f, 0.1f, 0.3f, 0.f, 0.f, 1.f, 0.f};
  set_candidates(header, p, 2, layer);
  EXPECT_EQ(layer.candidates, (std::vector<uint16_t>{1, 3, 0, 2, 0, 1}));
  EXPECT_EQ(layer.probabilities, (std::vector<uint16_t>{32768, 19661, 6554, 65535, 0, 0}));
  EXPECT_FLOAT_EQ(trace_probability(65535), 1.f);
  EXPECT_EQ(stored_probability(2.f), 65535);
  EXPECT_EQ(stored_probability(-1.f), 0);
  EXPECT_EQ(stored_probability(std::nanf("")), 0);
}

TEST(Trace, GathersALayersEvent) {
  TraceLayer layer;
  layer.chosen = {5, 2, 2, 9};
  const TraceEvent event = trace_event(layer);
  EXPECT_EQ(event.experts, (std::vector<ExpertId>{2, 5, 9}));
  EXPECT_EQ(event.rows, (std::vector<int32_t>{2, 1, 1}));
}

}  // namespace
}  // namespace ef
