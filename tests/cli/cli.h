// The built binary, and the models that its tests run.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {

using Arguments = std::vector<std::string>;

/// No run leaves anything to the next unless a test says where.
inline ProcessResult expertflow(const Arguments& arguments, std::map<std::string, std::string> environment = {},
                                const std::string& input = "") {
  if (environment.count("XDG_CACHE_HOME") == 0) environment.emplace("EXPERTFLOW_EXPERT_PROFILE", "off");
  return run_process({EF_CLI, arguments, environment, input});
}

inline std::string demo() { return std::string(EF_SOURCE_DIR) + "/models/demo/demo-Q5_K_M.gguf"; }
inline std::string hf(const std::string& name) { return fixtures() / "hf" / name; }
inline std::string gguf(const std::string& name) { return fixtures() / "gguf" / (name + ".gguf"); }

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string ids_text(const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

inline void write_file(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

}  // namespace ef::testing

/// Exit code, and what standard error must say; standard output stays empty.
#define EXPECT_REFUSED(result, code, ...)                                                                       \
  do {                                                                                                          \
    const ef::testing::ProcessResult ef_result = (result);                                                      \
    EXPECT_EQ(ef_result.exit_code, code) << ef_result.err;                                                      \
    EXPECT_EQ(ef_result.out, "");                                                                               \
    for (const char* ef_part : {__VA_ARGS__})                                                                   \
      EXPECT_TRUE(ef::testing::holds(ef_result.err, ef_part)) << "\"" << ef_part << "\" in: " << ef_result.err; \
  } while (0)
