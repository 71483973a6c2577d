// pack through the binary: the packed file runs like its source, and says how it is read.
#include <nlohmann/json.hpp>

#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

TEST(CliPack, ThePackedDemoSaysTheSame) {
  const TempFolder folder;
  const std::string packed = folder.path / "demo.efpack";
  const auto result = expertflow({"pack", "-q", demo(), "-o", packed});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with(packed + ": 384 experts, ")) << result.out;
  const Arguments run = {"-p", "Once upon a time", "-n", "12", "--temp", "0", "--expert-memory", "40%"};
  const auto from = expertflow(Arguments{"run", "-m", demo()} + run);
  const auto to = expertflow(Arguments{"run", "-m", packed} + run);
  EXPECT_EQ(to.exit_code, 0) << to.err;
  EXPECT_FALSE(from.out.empty());
  EXPECT_EQ(to.out, from.out);
  for (const auto& log : {from.err, to.err})
    for (const char* part : {"experts are read by ", "reads: ", "GB/s"}) EXPECT_TRUE(holds(log, part)) << log;
  const auto pread = expertflow(Arguments{"run", "-m", packed, "--io", "pread", "--direct-io", "off"} + run);
  EXPECT_EQ(pread.out, from.out);
  EXPECT_TRUE(holds(pread.err, "experts are read by pread, buffered, 4 at once")) << pread.err;
  const auto inspect = expertflow({"inspect", "--json", "-m", packed});
  const auto j = nlohmann::json::parse(inspect.out, nullptr, false);
  ASSERT_TRUE(j.is_object()) << inspect.out << inspect.err;
  EXPECT_EQ(j["file_kind"], "packed GGUF");
  EXPECT_TRUE(j["packed"]["layout"] == "rows" || j["packed"]["layout"] == "tiles16") << j["packed"];
  EXPECT_EQ(j["packed"]["source"], "demo-Q5_K_M.gguf");
  EXPECT_EQ(j["slot_bytes"].get<int64_t>() % 4096, 0);
  const auto text = expertflow({"inspect", "-m", packed});
  EXPECT_TRUE(holds(text.out, "layout ")) << text.out;
}

TEST(CliPack, Refusals) {
  const TempFolder folder;
  const std::string out = folder.path / "out";
  EXPECT_REFUSED(expertflow({"pack", hf("mixtral")}), 2, "--output");
  EXPECT_REFUSED(expertflow({"pack", "-q", folder.path / "none", "-o", out}), 3, "none");
  write_file(out, "mine");
  EXPECT_REFUSED(expertflow({"pack", "-q", hf("mixtral"), "-o", out}), 2, "--force");
  EXPECT_EQ(expertflow({"pack", "-q", hf("mixtral"), "-o", out, "--force"}).exit_code, 0);
  EXPECT_REFUSED(expertflow({"pack", "-q", out, "-o", folder.path / "twice"}), 2, "packed");
  EXPECT_REFUSED(expertflow({"quantize", out, folder.path / "q.gguf", "--type", "q8_0"}), 2, "packed", "mixtral");
  // In the model's own folder a packed file may be replaced, what the folder needs may not.
  const std::filesystem::path copy = folder.path / "m", config = copy / "config.json", own = copy / "own.packed";
  std::filesystem::copy(hf("mixtral"), copy);
  EXPECT_EQ(expertflow({"pack", "-q", copy, "-o", own}).exit_code, 0);
  EXPECT_REFUSED(expertflow({"pack", "-q", copy, "-o", own}), 2, "--force");
  EXPECT_EQ(expertflow({"pack", "-q", copy, "-o", own, "--force"}).exit_code, 0);
  EXPECT_REFUSED(expertflow({"pack", "-q", copy, "-o", config, "--force"}), 2, "the source's folder");
  EXPECT_REFUSED(expertflow({"widen", "-q", out, folder.path / "wide", "2", "2"}), 2, "packed", "mixtral");
}

}  // namespace
}  // namespace ef::testing
