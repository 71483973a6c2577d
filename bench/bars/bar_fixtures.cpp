// Bar: every checkpoint of the fixtures meets its golden outputs at full budget and with the fewest slots, and every
// block format dequantises exactly. One line a checkpoint and budget; the figure on the last line.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "tests/support/golden_check.h"

namespace {

using namespace ef;
using namespace ef::testing;

int check_formats(int& total) {
  int right = 0;
  for (const FormatInfo& info : all_formats()) {
    const auto blocks = fixtures() / "quant" / (std::string(info.name) + ".bin");
    if (!std::filesystem::exists(blocks)) continue;
    ++total;
    const std::string packed = read_text_file(blocks),
                      expected = read_text_file(fixtures() / "quant" / (std::string(info.name) + ".f32"));
    std::vector<float> values(packed.size() / size_t(info.block_bytes) * size_t(info.block_elements));
    info.dequantize(reinterpret_cast<const std::byte*>(packed.data()), values.data(), int64_t(values.size()));
    const bool exact =
        values.size() * 4 == expected.size() && std::memcmp(values.data(), expected.data(), expected.size()) == 0;
    fmt::print("{:<34} {}\n", fmt::format("quant/{}", info.name), exact ? "exact" : "DIFFERS");
    right += exact;
  }
  return right;
}

}  // namespace

int main() try {
  int runs = 0, passed = 0;
  double worst = 0;
  for (const Fixture& fixture : all_fixtures())
    for (const char* budget : {"100%", "min"}) {
      const FixtureReport report = check_fixture(fixture, budget);
      const bool ok = report.pass(fixture);
      worst = std::max(worst, report.max_logit_error / fixture.tolerance);
      ++runs, passed += ok;
      fmt::print("{:<34} {:<5} {} {}\n", fixture.name, budget, ok ? "ok  " : "FAIL", report.text());
    }
  int formats = 0;
  const int exact = check_formats(formats);
  const bool ok = passed == runs && runs >= 64 && exact == formats && formats >= 13;
  fmt::print("bar fixtures: {}: {}/{} runs right, worst logit error {:.2f} of the tolerance, {}/{} formats exact\n",
             ok ? "ok" : "SHORT", passed, runs, worst, exact, formats);
  return ok ? 0 : 1;
} catch (const ef::Error& error) {
  fmt::print(stderr, "bar fixtures: {}\n", error.what());
  return 1;
}
