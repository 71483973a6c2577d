// The slow tier's calibration under a clock that a reader moves.
#include "expertflow/transfer/calibration.h"

#include <gtest/gtest.h>

#include <set>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

// Takes a millisecond for each expert.
class SlowReader final : public ExpertReader {
 public:
  explicit SlowReader(ManualClock& clock) : clock_(clock) {}
  uint64_t file_bytes(ExpertKey key) const override { return key.layer == 0 ? 1000 : 2000; }
  void fill(ExpertKey key, std::span<std::byte> slot, int lane) override {
    EXPECT_EQ(lane, 0);
    EXPECT_EQ(slot.size(), key.layer == 0 ? 1024u : 2048u);
    read.insert(key);
    ++fills;
    if (fails) fail<DeviceError>("no disk");
    clock_.advance(std::chrono::milliseconds(1));
  }
  std::set<ExpertKey> read;
  int fills = 0;
  bool fails = false;

 private:
  ManualClock& clock_;
};

CacheGeometry geometry() { return {{{8, 1024}, {0, 0}, {8, 2048}}, 1024}; }

TEST(Calibration, MeasuresWithinItsTime) {
  ManualClock clock;
  SlowReader reader(clock);
  const CacheGeometry g = geometry();
  LinkCalibrator calibrator(reader, g, clock, {.lanes = 1, .most_seconds = 0.0045});
  ASSERT_TRUE(calibrator.due());
  const LinkCalibration& found = calibrator.run();
  EXPECT_EQ(reader.fills, 5);  // the fifth begins after four milliseconds
  EXPECT_EQ(reader.read.size(), 5u) << "different experts";
  EXPECT_DOUBLE_EQ(found.seconds, 0.005);
  uint64_t bytes = 0;
  for (const ExpertKey key : reader.read) bytes += reader.file_bytes(key);
  EXPECT_EQ(found.bytes, bytes);
  EXPECT_DOUBLE_EQ(found.bytes_per_second, double(bytes) / 0.005);
  clock.advance(std::chrono::hours(1));
  EXPECT_FALSE(calibrator.due()) << "no period was asked for";
}

TEST(Calibration, ComesAgainAfterItsPeriod) {
  ManualClock clock;
  SlowReader reader(clock);
  const CacheGeometry g = geometry();
  LinkCalibrator calibrator(reader, g, clock, {.lanes = 1, .most_seconds = 0, .period = std::chrono::minutes(5)});
  calibrator.run();
  EXPECT_EQ(reader.fills, 1) << "one read at least";
  clock.advance(std::chrono::minutes(5) - std::chrono::milliseconds(2));
  EXPECT_FALSE(calibrator.due());
  clock.advance(std::chrono::milliseconds(1));
  EXPECT_TRUE(calibrator.due());
  EXPECT_EQ(calibrator.run().runs, 2u);
}

TEST(Calibration, AFailedReadIsNoBandwidth) {
  ManualClock clock;
  SlowReader reader(clock);
  reader.fails = true;
  const CacheGeometry g = geometry();
  LinkCalibrator calibrator(reader, g, clock, {.lanes = 1});
  EXPECT_EQ(calibrator.run().bytes_per_second, 0);
  EXPECT_EQ(reader.fills, 1);
}

}  // namespace
}  // namespace ef
