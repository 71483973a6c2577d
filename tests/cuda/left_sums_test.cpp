// Sums over ranks that a stream leaves to the op behind: whatever that op is, results are to the last bit those of ops
// that are waited for one by one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "expertflow/backend/cuda/cuda_fast.h"
#include "expertflow/backend/cuda/cuda_stream.h"
#include "expertflow/backend/cuda_backend.h"
#include "tests/contract/op_test.h"

namespace ef::cuda::testing {
namespace {

using ef::testing::DeviceArray;
using ef::testing::make_matrix;
using ef::testing::TestMatrix;

class LeftSums : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 5, kHidden = 256, kFfn = 256, kOutputs = 70;
  static constexpr int kExperts = 6, kTopK = 2;

  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no device";
    backend_ = make_cuda_backend(0);
    stream_ = std::make_unique<CudaStream>(*backend_, 0);
    ef::testing::Random random(3);
    for (int i = 0; i < 3 * kExperts; ++i)
      matrices_.push_back(make_matrix(*backend_, random, Format::kQ4K, kFfn, kHidden, 0.1f));  // all are square
    for (size_t i = 0; i < matrices_.size(); i += 3)
      views_.push_back({matrices_[i].view, matrices_[i + 1].view, matrices_[i + 2].view});
    product_ = make_matrix(*backend_, random, Format::kQ4K, kOutputs, kHidden, 0.1f);
    table_ = expert_table(*backend_, views_, *stream_);
    x_ = random.floats(kRows * kHidden), before_ = random.floats(kRows * kHidden);
    weights_ = random.floats(kRows * kTopK), norm_ = random.floats(kHidden);
    for (int64_t i = 0; i < kRows * kTopK; ++i) ids_.push_back(int32_t(i % kExperts));

    // Tensor cores for these shapes from one row on.
    const std::filesystem::path file =
        std::filesystem::path(::testing::TempDir()) / ("left_sums_" + std::to_string(getpid()) + ".json");
    std::ofstream(file) << R"({"here": {"Q4_K/Q4_K/Q4_K 256x256, 2 of 6": 1, "Q4_K 70x256": 1}})";
    fast_.tune(*stream_, {}, {}, file);
    std::filesystem::remove(file);
  }

  // The experts, between(), and the norm with a product: the sums, the normalised rows, the product.
  template <class Between>
  std::vector<std::vector<float>> run(Between between) {
    const DeviceArray<int32_t> ids(*backend_, ids_);
    const DeviceArray<float> x(*backend_, x_), weights(*backend_, weights_), norm(*backend_, norm_);
    const std::vector<float> nothing(size_t(kRows * kHidden), NAN);
    DeviceArray<float> sum(*backend_, before_), unused(*backend_, nothing), normed(*backend_, nothing),
        out(*backend_, std::vector<float>(size_t(kRows * kOutputs), NAN));
    RoutedExpertsArgs a;
    a.rows = kRows, a.hidden = kHidden, a.ffn = kFfn, a.top_k = kTopK;
    a.kind = &views_.front(), a.experts = kExperts, a.table = table_.data();
    a.ids = ids.data(), a.weights = weights.data(), a.x = x.data(), a.out = unused.data();
    a.add_to = sum.data(), a.add_scale = 0.5f;
    fast_.routed_experts(*stream_, a);
    EXPECT_NE(stream_->left(), nullptr);
    between(sum.data());
    const LinearOut outs[] = {{product_.view, nullptr, out.data()}};
    fast_.norm_linear(*stream_,
                      {{NormKind::kRms, kRows, kHidden, 1e-6f, norm.data(), nullptr, sum.data(), normed.data()}, outs});
    EXPECT_EQ(stream_->left(), nullptr);
    stream_->synchronize();
    return {sum.read(), normed.read(), out.read()};
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<CudaStream> stream_;
  Fast fast_{true, "here"};
  std::vector<TestMatrix> matrices_;
  std::vector<ExpertView> views_;
  TestMatrix product_;
  Buffer table_;
  std::vector<float> x_, before_, weights_, norm_;
  std::vector<int32_t> ids_;
};

TEST_F(LeftSums, AreMadeByTheNormBehindThemOrBeforeAnythingElse) {
  const auto apart = run([&](float*) {
    stream_->synchronize();
    EXPECT_EQ(stream_->left(), nullptr);
  });
  for (const std::vector<float>& numbers : apart)
    for (const float v : numbers) ASSERT_TRUE(std::isfinite(v));
  EXPECT_NE(apart[0], before_);
  EXPECT_EQ(run([](float*) {}), apart);

  // Another op in between meets finished sums.
  const auto doubled = run([&](float* sum) { backend_->scale(*stream_, sum, 2.f, kRows * kHidden); });
  for (size_t i = 0; i < apart[0].size(); ++i) ASSERT_EQ(doubled[0][i], 2 * apart[0][i]);
  // So does a copy.
  std::vector<float> copied(apart[0].size());
  run([&](float* sum) { stream_->copy_to_host(copied.data(), sum, copied.size() * sizeof(float)); });
  EXPECT_EQ(copied, apart[0]);
}

}  // namespace
}  // namespace ef::cuda::testing
