// Profiles of a stream count what was queued, whatever it took; peaks are figures of a device.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "expertflow/backend/cuda/cuda_profile.h"
#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/errors.h"

namespace ef::cuda::testing {
namespace {

class CudaProfiles : public ::testing::Test {
 protected:
  static constexpr int64_t kFloats = 1000;
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no device";
    backend_ = make_cuda_backend(0);
    stream_ = backend_->make_stream();
    x_ = backend_->allocate(kFloats * sizeof(float));
  }
  void copy_in() {
    std::iota(host_.begin(), host_.end(), 0.f);
    backend_->copy_to_device(x_.data(), host_.data(), kFloats * sizeof(float), *stream_);
  }
  void double_it() { backend_->scale(*stream_, x_.as<float>(), 2.f, kFloats); }
  void copy_out() {
    backend_->copy_to_host(host_.data(), x_.data(), kFloats * sizeof(float), *stream_);
    stream_->synchronize();
  }
  static uint64_t count(const StreamProfile& profile, bool copies) {
    uint64_t n = 0;
    for (const auto& entry : profile.entries) n += entry.copy == copies ? entry.count : 0;
    return n;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  Buffer x_;
  std::vector<float> host_ = std::vector<float>(kFloats);
};

TEST_F(CudaProfiles, CountEveryPieceOfWork) {
  ASSERT_TRUE(stream_->begin_profile());
  copy_in();
  for (int i = 0; i < 3; ++i) double_it();
  copy_out();
  double_it();  // after somebody has waited
  StreamProfile profile = stream_->end_profile();
  for (int64_t i = 0; i < kFloats; ++i) ASSERT_EQ(host_[size_t(i)], 8.f * float(i));
  ASSERT_EQ(profile.entries.size(), 3u);
  EXPECT_EQ(count(profile, false), 4u);
  EXPECT_EQ(count(profile, true), 2u);
  for (const auto& entry : profile.entries) {
    EXPECT_FALSE(entry.name.empty());
    EXPECT_TRUE(std::isfinite(entry.seconds) && entry.seconds >= 0) << entry.name;
    EXPECT_LT(entry.seconds, 1) << entry.name;
  }
  EXPECT_GE(profile.added_seconds, 0);
  EXPECT_GE(profile.empty_seconds, 0);

  double_it();
  ASSERT_TRUE(stream_->begin_profile());
  profile = stream_->end_profile();
  EXPECT_TRUE(profile.entries.empty()) << profile.entries.front().name;
}

// Recorded steps run piece by piece while they are timed, and are replayed again afterwards.
TEST_F(CudaProfiles, TakeRecordingsApart) {
  constexpr uint64_t kKey = 7;
  copy_in();
  const auto step = [&] {
    if (stream_->replay(kKey)) return true;
    stream_->begin_recording(kKey);
    double_it();
    stream_->end_recording();
    return false;
  };
  EXPECT_FALSE(step());
  EXPECT_FALSE(step());
  EXPECT_TRUE(step());
  ASSERT_TRUE(stream_->begin_profile());
  EXPECT_FALSE(step());
  EXPECT_EQ(count(stream_->end_profile(), false), 1u);
  EXPECT_TRUE(step());
  copy_out();
  for (int64_t i = 0; i < kFloats; ++i) ASSERT_EQ(host_[size_t(i)], 32.f * float(i));
}

TEST(KernelNames, AreWhatPeopleWrote) {
  EXPECT_EQ(plain_name("_ZN2ef4cuda40_GLOBAL__N__b8aed2e0_8_probe_cu_950554228read_allEPK5uint4lPj"), "read_all");
  EXPECT_EQ(plain_name("_ZN2ef4cuda6matvecILNS0_3FmtE4ELi8EEEvNS0_12MatvecParamsE"), "matvec<(Fmt)4, 8>");
  EXPECT_EQ(plain_name("kernel"), "kernel");
  EXPECT_EQ(plain_name("_Z5plainv"), "plain");
}

TEST(CudaPeaks, AreFigures) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no device";
  const CudaPeaks peaks = cuda_peaks(0, 64 << 20);
  EXPECT_TRUE(std::isfinite(peaks.read) && peaks.read > 0);
  EXPECT_TRUE(std::isfinite(peaks.half) && peaks.half > 0);
  EXPECT_EQ(peaks.read_buffer, 64u << 20);
  EXPECT_THROW(cuda_peaks(0, 1 << 20), DeviceError);
  EXPECT_THROW(cuda_peaks(cuda_device_count()), ConfigError);
}

}  // namespace
}  // namespace ef::cuda::testing
