// Steps that a stream records: what is replayed gives what the ops give, for whatever the memory holds by then.
#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

class Recording : public ::testing::TestWithParam<BackendMaker> {
 protected:
  Recording() : pool_(2), backend_(GetParam().make(pool_)), stream_(backend_->make_stream()) {}

  // A step in the manner of forward(): replayed, or run and perhaps recorded. Whether it was replayed.
  template <class Work>
  bool step(uint64_t key, const Work& work) {
    const bool replayed = stream_->replay(key);
    if (!replayed) {
      stream_->begin_recording(key);
      work();
      stream_->end_recording();
    }
    stream_->synchronize();
    return replayed;
  }
  void write(float* device, const std::vector<float>& values) {
    backend_->copy_to_device(device, values.data(), values.size() * sizeof(float), *stream_);
  }

  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
};

TEST_P(Recording, EveryPassGivesWhatItsInputsAre) {
  Random random(1);
  const int64_t rows = 2, cols = 256, n = 12;
  const TestMatrix w = make_matrix(*backend_, random, Format::kQ8_0, n, cols);
  DeviceArray<float> x(*backend_, random.floats(rows * cols)),
      out(*backend_, std::vector<float>(size_t(rows * n), NAN));
  DeviceArray<float> again(*backend_, std::vector<float>(size_t(rows * n), NAN));
  const auto work = [&] {
    backend_->scale(*stream_, x.data(), 2.f, rows * cols);
    backend_->linear(*stream_, {w.view, nullptr, rows, x.data(), out.data()});
  };
  for (int pass = 0; pass < 5; ++pass) {
    std::vector<float> in = random.floats(rows * cols);
    write(x.data(), in);
    step(7, work);
    for (float& v : in) v *= 2.f;
    write(x.data(), in);
    backend_->linear(*stream_, {w.view, nullptr, rows, x.data(), again.data()});
    stream_->synchronize();
    EXPECT_TRUE(same_bits(out.read(), again.read())) << "pass " << pass;
  }
}

TEST_P(Recording, KeysAreApart) {
  const int64_t n = 100;
  DeviceArray<float> x(*backend_, std::vector<float>(size_t(n), 1.f));
  for (int pass = 0; pass < 3; ++pass) {
    for (const uint64_t key : {2u, 3u}) {
      write(x.data(), std::vector<float>(size_t(n), 1.f));
      step(key, [&] { backend_->scale(*stream_, x.data(), float(key), n); });
      EXPECT_EQ(x.read(), std::vector<float>(size_t(n), float(key)));
    }
  }
}

// More keys than a stream keeps.
TEST_P(Recording, OldKeysMayBeForgotten) {
  DeviceArray<float> x(*backend_, std::vector<float>(1, 0.f));
  for (int pass = 0; pass < 3; ++pass) {
    for (uint64_t key = 1; key <= 40; ++key) {
      write(x.data(), {1.f});
      step(key, [&] { backend_->scale(*stream_, x.data(), float(key), 1); });
      EXPECT_EQ(x.read(), std::vector<float>(1, float(key)));
    }
  }
}

TEST_P(Recording, WhatIsForgottenOrAbandonedIsNotReplayed) {
  DeviceArray<float> x(*backend_, std::vector<float>(1, 1.f));
  const auto work = [&] { backend_->scale(*stream_, x.data(), 2.f, 1); };
  for (int pass = 0; pass < 3; ++pass) step(1, work);
  stream_->forget_recordings();
  EXPECT_FALSE(stream_->replay(1));
  stream_->begin_recording(5);
  work();
  stream_->abandon_recording();
  stream_->synchronize();
  EXPECT_FALSE(stream_->replay(5));
  // The stream goes on as before.
  write(x.data(), {3.f});
  for (int pass = 0; pass < 3; ++pass) step(5, work);
  EXPECT_EQ(x.read(), std::vector<float>(1, 24.f));
}

// A device of one's own that records has replayed by the third time.
TEST_P(Recording, DevicesReplay) {
  DeviceArray<float> x(*backend_, std::vector<float>(1, 1.f));
  bool replayed = false;
  for (int pass = 0; pass < 3; ++pass) replayed = step(9, [&] { backend_->scale(*stream_, x.data(), 2.f, 1); });
  EXPECT_EQ(replayed, !backend_->memory_is_host());
  EXPECT_EQ(x.read(), std::vector<float>(1, 8.f));
}

INSTANTIATE_TEST_SUITE_P(Backends, Recording, ::testing::ValuesIn(composition_makers()), backend_name);

}  // namespace
}  // namespace ef::testing
