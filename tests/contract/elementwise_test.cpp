// Norms, rotary embedding and the simple loops against doubles; memory and copies.
#include "expertflow/base/errors.h"
#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

using Elementwise = OpTest;

std::vector<float> run_norm(Backend& backend, NormArgs args, const std::vector<float>& x,
                            const std::vector<float>& weight, const std::vector<float>& bias, bool in_place) {
  auto stream = backend.make_stream();
  DeviceArray<float> device_x(backend, x), device_weight(backend, weight), device_bias(backend, bias);
  DeviceArray<float> out(backend, std::vector<float>(x.size(), NAN));
  args.rows = int64_t(x.size()) / args.width;
  args.weight = device_weight.data();
  args.bias = bias.empty() ? nullptr : device_bias.data();
  args.x = device_x.data();
  args.out = in_place ? device_x.data() : out.data();
  backend.norm(*stream, args);
  stream->synchronize();
  return in_place ? device_x.read() : out.read();
}

TEST_P(Elementwise, NormAgainstDoubles) {
  Random random(1);
  for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (int64_t width : {1, 2, 15, 16, 17, 100, 2048, 7168}) {
      for (float eps : {1e-6f, 1e-2f}) {
        const int64_t rows = width > 1000 ? 2 : 9;
        auto x = random.floats(rows * width, 3.f);
        for (float& v : x) v += 1.f;
        const auto weight = random.floats(width);
        const auto bias = kind == NormKind::kLayer ? random.floats(width) : std::vector<float>{};
        const NormArgs args{.kind = kind, .width = width, .eps = eps};
        const auto got = run_norm(backend(), args, x, weight, bias, false);
        EXPECT_TRUE(same_bits(run_norm(backend(), args, x, weight, bias, true), got)) << "in place";
        for (int64_t r = 0; r < rows; ++r) {
          const float* row = &x[size_t(r * width)];
          double mean = 0, squares = 0;
          for (int64_t i = 0; i < width; ++i) mean += double(row[i]) / double(width);
          if (kind == NormKind::kRms) mean = 0;
          for (int64_t i = 0; i < width; ++i) squares += (double(row[i]) - mean) * (double(row[i]) - mean);
          const double scale = 1 / std::sqrt(squares / double(width) + double(eps));
          for (int64_t i = 0; i < width; ++i) {
            double want = (double(row[i]) - mean) * scale * double(weight[size_t(i)]);
            if (!bias.empty()) want += double(bias[size_t(i)]);
            // A mean that cancels leaves errors of the size of x itself.
            const double tolerance = 1e-6 * (std::fabs(want) + 1) * (1 + (width < 3 ? scale : 0));
            ASSERT_NEAR(got[size_t(r * width + i)], want, tolerance) << "width " << width;
          }
        }
        const std::vector<float> first(x.begin(), x.begin() + width), first_out(got.begin(), got.begin() + width);
        EXPECT_TRUE(same_bits(run_norm(backend(), args, first, weight, bias, false), first_out)) << "row alone";
      }
    }
  }
}

TEST_P(Elementwise, NormOfZerosIsFinite) {
  for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const NormArgs args{.kind = kind, .width = 20, .eps = 1e-5f};
    const auto got = run_norm(backend(), args, std::vector<float>(20, 0.f), std::vector<float>(20, 2.f), {}, false);
    EXPECT_EQ(got, std::vector<float>(20, 0.f));
  }
}

TEST_P(Elementwise, RopeRotatesItsPartOnly) {
  Random random(2);
  for (bool interleaved : {false, true}) {
    for (const int rotary : {2, 8, 24}) {
      const int heads = 3, head_dim = 24, offset = rotary == 8 ? 16 : 0, half = rotary / 2;
      const int64_t rows = 5, stride = heads * head_dim + 6;
      const auto x = random.floats(rows * stride), cos = random.floats(rows * half), sin = random.floats(rows * half);
      auto device_x = array(x), device_cos = array(cos), device_sin = array(sin);
      RopeArgs args{
          rows,           heads, head_dim, offset, rotary, stride, interleaved, device_cos.data(), device_sin.data(),
          device_x.data()};
      backend().rope(stream(), args);
      stream().synchronize();
      const auto got = device_x.read();
      auto want = std::vector<double>(x.begin(), x.end());
      for (int64_t r = 0; r < rows; ++r) {
        for (int h = 0; h < heads; ++h) {
          for (int i = 0; i < half; ++i) {
            const size_t begin = size_t(r * stride + h * head_dim + offset);
            const size_t a = begin + size_t(interleaved ? 2 * i : i),
                         b = begin + size_t(interleaved ? 2 * i + 1 : i + half);
            const double c = double(cos[size_t(r * half + i)]), s = double(sin[size_t(r * half + i)]);
            want[a] = double(x[a]) * c - double(x[b]) * s;
            want[b] = double(x[b]) * c + double(x[a]) * s;
          }
        }
      }
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6) << i;
    }
  }
}

TEST_P(Elementwise, AddScaledScaleAndClamp) {
  Random random(3);
  for (int64_t n : {0, 1, 33, 300007}) {
    const auto x = random.floats(n), y = random.floats(n);
    auto sum = array(x), scaled = array(x), clamped = array(x), device_y = array(y);
    backend().add_scaled(stream(), sum.data(), device_y.data(), 0.22f, n);
    backend().scale(stream(), scaled.data(), 12.f, n);
    backend().clamp(stream(), clamped.data(), -0.5f, 0.75f, n);
    stream().synchronize();
    const auto got_sum = sum.read(), got_scaled = scaled.read(), got_clamped = clamped.read();
    for (size_t i = 0; i < size_t(n); ++i) {
      ASSERT_NEAR(got_sum[i], double(x[i]) + double(0.22f) * double(y[i]), 4e-7);
      ASSERT_EQ(got_scaled[i], x[i] * 12.f);
      ASSERT_EQ(got_clamped[i], std::min(0.75f, std::max(-0.5f, x[i])));
    }
  }
  auto nan = array(std::vector<float>{NAN, 2.f, -2.f});
  backend().clamp(stream(), nan.data(), -1.f, 1.f, 3);
  stream().synchronize();
  const auto got = nan.read();
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_EQ(got[1], 1.f);
  EXPECT_EQ(got[2], -1.f);
}

TEST_P(Elementwise, GatedAddAgainstDoubles) {
  Random random(4);
  const int64_t rows = 37, width = 19;
  const auto x = random.floats(rows * width), y = random.floats(rows * width), gate = random.floats(rows, 3.f);
  auto device_x = array(x), device_y = array(y), device_gate = array(gate);
  backend().gated_add(stream(), device_x.data(), device_y.data(), device_gate.data(), rows, width);
  stream().synchronize();
  const auto got = device_x.read();
  for (size_t i = 0; i < got.size(); ++i) {
    const double factor = 1 / (1 + std::exp(-double(gate[i / size_t(width)])));
    ASSERT_NEAR(got[i], double(x[i]) + factor * double(y[i]), 1e-6);
  }
}

TEST_P(Elementwise, Copy2dMovesARectangle) {
  Random random(5);
  const int64_t rows = 70, width = 5, from = 9, to = 7;
  const auto src = random.floats(rows * from);
  auto device_src = array(src);
  auto dst = array(std::vector<float>(size_t(rows * to), -1.f));
  backend().copy_2d(stream(), dst.data() + 1, to, device_src.data() + 2, from, width, rows);
  stream().synchronize();
  const auto got = dst.read();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < to; ++i) {
      const bool inside = i >= 1 && i < 1 + width;
      ASSERT_EQ(got[size_t(r * to + i)], inside ? src[size_t(r * from + i + 1)] : -1.f);
    }
}

TEST_P(Elementwise, BitIdenticalAtAnyNumberOfThreads) {
  Random random(6);
  const int64_t n = 200003;
  const auto x = random.floats(n), y = random.floats(n);
  std::vector<float> expected;
  for (int threads : {2, 1, 3, 8}) {
    ThreadPool pool(threads);
    auto other = GetParam().make(pool);
    auto stream = other->make_stream();
    DeviceArray<float> a(*other, x), b(*other, y);
    other->activation(*stream, ActivationArgs{Activation{}, n, a.data(), b.data(), b.data()});
    other->add_scaled(*stream, a.data(), b.data(), 0.3f, n);
    stream->synchronize();
    const auto got = a.read();
    if (expected.empty()) expected = got;
    EXPECT_TRUE(same_bits(got, expected)) << threads << " threads";
  }
}

TEST_P(Elementwise, MemoryIsAlignedOwnedAndRefusedWithNumbers) {
  for (uint64_t bytes : {uint64_t(0), uint64_t(1), uint64_t(100), uint64_t(5) << 20}) {
    Buffer b = backend().allocate(bytes);
    EXPECT_TRUE(b);
    EXPECT_EQ(b.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 64, 0u);
    Buffer moved = std::move(b);
    EXPECT_TRUE(moved);
  }
  for (uint64_t absurd : {uint64_t(1) << 60, ~uint64_t(0)}) {
    try {
      backend().allocate(absurd);
      ADD_FAILURE() << "allocated " << absurd;
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(absurd)), std::string::npos) << error.what();
    }
  }
}

TEST_P(Elementwise, CopiesThereAndBack) {
  Random random(7);
  const auto x = random.floats(1000);
  Buffer b = backend().allocate(4000);
  std::vector<float> back(1000);
  backend().copy_to_device(b.data(), x.data(), 4000, stream());
  backend().copy_to_host(back.data(), b.data(), 4000, stream());
  backend().copy_to_host(nullptr, b.data(), 0, stream());
  stream().synchronize();
  EXPECT_EQ(back, x);
}

EF_FOR_EACH_BACKEND(Elementwise);

TEST(CpuIsa, NamesAreParsed) {
  const auto isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kReference);
  for (Isa isa : isas) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_EQ(parse_isa("auto"), default_isa());
  EXPECT_NE(default_isa(), Isa::kAvx512Bf16);
}

TEST(CpuIsa, UnknownNamesAreRefusedWithTheKnownOnes) {
  for (const char* name : {"", "AVX2", "sse9", "reference "}) {
    try {
      parse_isa(name);
      ADD_FAILURE() << name;
    } catch (const ConfigError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("reference"), std::string::npos) << message;
      EXPECT_NE(message.find("auto"), std::string::npos) << message;
    }
  }
}

TEST(CpuIsa, DescriptionNamesIsaAndThreads) {
  ThreadPool pool(3);
  const auto backend = make_cpu_backend(pool, Isa::kReference);
  EXPECT_EQ(backend->name(), "cpu");
  EXPECT_EQ(backend->description(), "cpu (reference, 3 threads)");
}

}  // namespace
}  // namespace ef::testing
