#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <string_view>

#include "tests/base/source_rules.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

// From the bottom up: a layer may include itself and what stands before it.
constexpr std::array kLadder = {"base",     "trace",   "quant", "backend", "weights", "model",   "cache",
                                "transfer", "predict", "sched", "replay",  "engine",  "convert", "measure"};

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

std::optional<size_t> rank_of(std::string_view layer) {
  const auto it = std::find(kLadder.begin(), kLadder.end(), layer);
  if (it == kLadder.end()) return std::nullopt;
  return static_cast<size_t>(it - kLadder.begin());
}

// "expertflow/weights/gguf.h" -> "weights"; the backends' own folders count apart: "backend/cpu".
std::string layer_of(const std::string& path) {
  if (!starts_with(path, "expertflow/")) return path.substr(0, path.find('/'));
  const size_t begin = std::string_view("expertflow/").size();
  const size_t end = path.find('/', begin);
  if (end == std::string::npos) return "";
  const std::string layer = path.substr(begin, end - begin);
  const size_t sub = path.find('/', end + 1);
  if (layer != "backend" || sub == std::string::npos) return layer;
  return path.substr(begin, sub - begin);
}

bool is_one_backend(const std::string& layer) { return starts_with(layer, "backend/"); }

// The one question: may a file of layer `from` include a file of layer `to`?
bool may_include(const std::string& from, const std::string& to) {
  if (from == "tests" || from == "bench") return true;  // bars check against the tests' golden files
  if (to == "tests" || to == "bench") return false;
  if (from == "apps") return true;
  if (to == "apps") return false;
  if (from == to) return true;
  if (from == "text") return to == "base";
  if (to == "text" && from == "convert") return true;
  if (from == "hub") return to == "base";
  if (to == "text" || is_one_backend(to)) return from == "engine";
  const auto above = rank_of(is_one_backend(from) ? "backend" : from);
  const auto below = rank_of(to);
  return above && below && *below <= *above;
}

// The quoted path of an #include line, or the bracketed one with its bracket: `"a/b.h"` -> a/b.h, `<c>` -> <c.
std::optional<std::string> included_path(std::string_view line) {
  const size_t hash = line.find_first_not_of(" \t");
  if (hash == std::string_view::npos || line[hash] != '#') return std::nullopt;
  const size_t word = line.find_first_not_of(" \t", hash + 1);
  if (word == std::string_view::npos || !starts_with(line.substr(word), "include")) return std::nullopt;
  const size_t open = line.find_first_of("\"<", word);
  if (open == std::string_view::npos) return std::nullopt;
  const size_t close = line.find_first_of("\">", open + 1);
  if (close == std::string_view::npos) return std::nullopt;
  const size_t begin = line[open] == '<' ? open : open + 1;
  return std::string(line.substr(begin, close - begin));
}

// What is wrong with `path` including `target`, or nothing.
std::string fault_of(const std::string& path, const std::string& target) {
  const bool in_cuda = starts_with(path, "expertflow/backend/cuda/") || starts_with(path, "tests/cuda");
  const std::string device = "expertflow/backend/cuda/device/";
  if (starts_with(target, "<")) {
    if (starts_with(target, "<cuda") && !in_cuda)
      return "CUDA headers belong under expertflow/backend/cuda, tests/cuda and tests/cuda_emulation";
    return "";
  }
  if (starts_with(path, device)) {
    const bool beside = target.find('/') == std::string::npos;
    return beside || starts_with(target, device) ? "" : "device code includes nothing outside its folder";
  }
  const std::string from = layer_of(path);
  const bool own_name = starts_with(target, "expertflow/") || starts_with(target, "apps/") ||
                        starts_with(target, "bench/") || starts_with(target, "tests/");
  if (!own_name) return "quoted includes start at the root of the tree, with expertflow/, apps/, bench/ or tests/";
  const std::string to = layer_of(target);
  return may_include(from, to) ? "" : from + " may not include " + to;
}

void check_file(const fs::path& root, const fs::path& file, SourceReport& report) {
  const std::string path = fs::relative(file, root).generic_string();
  std::ifstream in(file);
  std::string line;
  int number = 0;
  while (std::getline(in, line)) {
    ++number;
    const auto target = included_path(line);
    if (!target) continue;
    if (!starts_with(*target, "<")) ++report.includes;
    const std::string fault = fault_of(path, *target);
    if (!fault.empty())
      report.violations.push_back(path + ":" + std::to_string(number) + ": " + fault + " (" + *target + ")");
  }
  ++report.files;
  if (number > kMaxLines)
    report.violations.push_back(path + ": " + std::to_string(number) + " lines, allowed are " +
                                std::to_string(kMaxLines));
}

}  // namespace

SourceReport check_sources(const fs::path& root) {
  SourceReport report;
  constexpr std::array kExtensions = {".h", ".cpp", ".cu", ".cuh"};
  for (const char* folder : {"expertflow", "apps", "bench", "tests"}) {
    if (!fs::exists(root / folder)) continue;
    for (auto it = fs::recursive_directory_iterator(root / folder); it != fs::recursive_directory_iterator(); ++it) {
      const fs::directory_entry& entry = *it;
      if (entry.path().filename() == "node_modules") it.disable_recursion_pending();  // a peer's, installed by npm
      const bool source =
          std::find(kExtensions.begin(), kExtensions.end(), entry.path().extension()) != kExtensions.end();
      if (entry.is_regular_file() && source) check_file(root, entry.path(), report);
    }
  }
  return report;
}

namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

TEST(IncludeDirection, TheTreeFollowsTheLadder) {
  const SourceReport report = check_sources(EF_SOURCE_DIR);
  EXPECT_TRUE(report.violations.empty()) << joined(report.violations);
  EXPECT_GT(report.files, 20);
  EXPECT_GT(report.includes, 20);
}

// A small tree in a temporary folder, to see that each rule can be broken.
class FakeTree : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "ef-sources-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  // The violations of a tree that holds this one file.
  std::vector<std::string> check(const std::string& path, const std::string& text) {
    fs::remove_all(root_);
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
    return check_sources(root_).violations;
  }
  size_t faults(const std::string& path, const std::string& target) {
    return check(path, "#include " + target + "\n").size();
  }

  fs::path root_;
};

TEST_F(FakeTree, DownIsAllowed) {
  EXPECT_EQ(faults("expertflow/model/a.cpp", "\"expertflow/weights/gguf.h\""), 0u);
  EXPECT_EQ(faults("expertflow/model/a.cpp", "\"expertflow/model/b.h\""), 0u);
  EXPECT_EQ(faults("expertflow/cache/a.h", "\"expertflow/model/experts.h\""), 0u);
  EXPECT_EQ(faults("expertflow/engine/a.h", "\"expertflow/text/tokenizer.h\""), 0u);
  EXPECT_EQ(faults("expertflow/engine/a.cpp", "\"expertflow/backend/cpu/cpu.h\""), 0u);
  EXPECT_EQ(faults("expertflow/backend/cpu/a.cpp", "\"expertflow/backend/backend.h\""), 0u);
  EXPECT_EQ(faults("expertflow/text/a.cpp", "\"expertflow/base/errors.h\""), 0u);
  EXPECT_EQ(faults("apps/cli/a.cpp", "\"expertflow/engine/engine.h\""), 0u);
  EXPECT_EQ(faults("tests/model/a.cpp", "\"expertflow/engine/engine.h\""), 0u);
  EXPECT_EQ(faults("bench/bars/a.cpp", "\"tests/support/golden.h\""), 0u);
  EXPECT_EQ(faults("expertflow/base/a.cpp", "<vector>"), 0u);
}

TEST_F(FakeTree, EveryStepUpIsReported) {
  for (size_t below = 0; below < kLadder.size(); ++below) {
    for (size_t above = below + 1; above < kLadder.size(); ++above) {
      const std::string path = std::string("expertflow/") + kLadder[below] + "/a.h";
      const std::string target = std::string("\"expertflow/") + kLadder[above] + "/b.h\"";
      EXPECT_EQ(faults(path, target), 1u) << path << " including " << target;
      EXPECT_EQ(faults(std::string("expertflow/") + kLadder[above] + "/a.h",
                       std::string("\"expertflow/") + kLadder[below] + "/b.h\""),
                0u);
    }
  }
}

TEST_F(FakeTree, TheReportNamesFileLineAndReason) {
  const auto found = check("expertflow/model/a.cpp", "// one\n  #  include \"expertflow/cache/expert_cache.h\"\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "expertflow/model/a.cpp:2: model may not include cache (expertflow/cache/expert_cache.h)");
}

TEST_F(FakeTree, TextStandsBesideTheLadder) {
  EXPECT_EQ(faults("expertflow/text/a.cpp", "\"expertflow/quant/formats.h\""), 1u);
  EXPECT_EQ(faults("expertflow/model/a.cpp", "\"expertflow/text/tokenizer.h\""), 1u);
  EXPECT_EQ(faults("expertflow/sched/a.cpp", "\"expertflow/text/sampler.h\""), 1u);
}

TEST_F(FakeTree, OneBackendIsSeenByTheEngineOnly) {
  EXPECT_EQ(faults("expertflow/cache/a.cpp", "\"expertflow/backend/cpu/cpu.h\""), 1u);
  EXPECT_EQ(faults("expertflow/backend/a.cpp", "\"expertflow/backend/cpu/cpu.h\""), 1u);
  EXPECT_EQ(faults("expertflow/backend/cuda/a.cpp", "\"expertflow/backend/cpu/cpu.h\""), 1u);
  EXPECT_EQ(faults("expertflow/backend/cpu/a.cpp", "\"expertflow/weights/gguf.h\""), 1u);
}

TEST_F(FakeTree, CudaStaysInItsFolder) {
  EXPECT_EQ(faults("expertflow/cache/a.cpp", "<cuda_runtime.h>"), 1u);
  EXPECT_EQ(faults("bench/a.cpp", "<cuda.h>"), 1u);
  EXPECT_EQ(faults("expertflow/backend/cuda/a.cu", "<cuda_runtime.h>"), 0u);
  EXPECT_EQ(faults("expertflow/backend/cuda/device/a.cuh", "\"b.cuh\""), 0u);
  EXPECT_EQ(faults("expertflow/backend/cuda/device/a.cuh", "\"expertflow/backend/cuda/device/b.cuh\""), 0u);
  EXPECT_EQ(faults("expertflow/backend/cuda/device/a.cuh", "\"expertflow/base/ids.h\""), 1u);
}

TEST_F(FakeTree, TheLibraryIncludesNoProgram) {
  EXPECT_EQ(faults("expertflow/engine/a.cpp", "\"apps/cli/options.h\""), 1u);
  EXPECT_EQ(faults("expertflow/engine/a.cpp", "\"tests/support/a.h\""), 1u);
  EXPECT_EQ(faults("apps/cli/a.cpp", "\"tests/support/a.h\""), 1u);
  EXPECT_EQ(faults("apps/cli/a.cpp", "\"bench/a.h\""), 1u);
}

TEST_F(FakeTree, RelativeIncludesAreReported) {
  EXPECT_EQ(faults("expertflow/model/a.cpp", "\"b.h\""), 1u);
  EXPECT_EQ(faults("expertflow/model/a.cpp", "\"../cache/b.h\""), 1u);
}

TEST_F(FakeTree, LongFilesAreReported) {
  std::string text;
  for (int i = 0; i < kMaxLines; ++i) text += "\n";
  EXPECT_TRUE(check("tests/base/a.cpp", text).empty());
  EXPECT_EQ(check("tests/base/a.cpp", text + "\n").size(), 1u);
  EXPECT_EQ(check("expertflow/base/a.h", text + "\n").size(), 1u);
  EXPECT_TRUE(check("expertflow/base/notes.md", text + "\n").empty());
}

}  // namespace
}  // namespace ef::testing
