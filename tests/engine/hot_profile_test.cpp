#include "expertflow/engine/hot_profile.h"

#include <gtest/gtest.h>

#include <fstream>

#include "expertflow/base/io.h"
#include "expertflow/engine/fingerprint.h"
#include "tests/engine/model_rig.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

TEST(HotProfile, WhatIsOldFadesByHalf) {
  HotProfile p;
  p.add({{}, {100, 0, 7}}, 10);
  p.add({{}, {0, 80, 0}}, uint64_t(HotProfile::kHalfLife));
  EXPECT_DOUBLE_EQ(p.weight[1][0], 50);
  EXPECT_DOUBLE_EQ(p.weight[1][1], 80);
  EXPECT_DOUBLE_EQ(p.weight[1][2], 3.5);
  EXPECT_DOUBLE_EQ(p.tokens, 5 + HotProfile::kHalfLife);
  EXPECT_EQ(p.hottest(), (std::vector<ExpertKey>{{1, 1}, {1, 0}, {1, 2}}));
}

class ProfileFile : public ::testing::Test {
 protected:
  ProfileFile() : file(folder.path / "deep" / "p.json") {
    HotProfile p;
    p.fingerprint = "00ff";
    p.add({{}, {3, 0}}, 3);
    std::filesystem::create_directories(file.parent_path());
    OutputFile out(file);
    save_profile(out, p);
  }
  // With one piece of the text replaced.
  void edit(const std::string& from, const std::string& to) {
    std::string text = read_text_file(file);
    ASSERT_NE(text.find(from), std::string::npos) << text;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(file) << text;
  }
  std::string refusal() {
    std::string why;
    EXPECT_FALSE(load_profile(file, "00ff", {0, 2}, why));
    return why;
  }
  TempFolder folder;
  std::filesystem::path file;
};

TEST_F(ProfileFile, ComesBackAsItWasSaved) {
  std::string why;
  const auto p = load_profile(file, "00ff", {0, 2}, why);
  ASSERT_TRUE(p) << why;
  EXPECT_EQ(p->weight, (std::vector<std::vector<double>>{{}, {3, 0}}));
  EXPECT_EQ(p->tokens, 3);
}

TEST(HotProfile, SaysWhatShareOfItsDemandSomeExpertsServe) {
  HotProfile p;
  p.weight = {{}, {6, 1, 0}, {2, 0, 1}};
  EXPECT_DOUBLE_EQ(p.share_of([](ExpertKey key) { return key.layer == 2; }), 0.3);
  EXPECT_DOUBLE_EQ(p.share_of([](ExpertKey key) { return key.expert == 0; }), 0.8);
  EXPECT_DOUBLE_EQ(p.share_of([](ExpertKey) { return true; }), 1);
  EXPECT_DOUBLE_EQ(HotProfile().share_of([](ExpertKey) { return true; }), 0);
}

TEST_F(ProfileFile, NoneIsNoComplaint) {
  std::string why = "?";
  EXPECT_FALSE(load_profile(folder.path / "none.json", "00ff", {0, 2}, why));
  EXPECT_EQ(why, "");
}

TEST_F(ProfileFile, OnesOfOtherModelsAreRefused) {
  std::string why;
  EXPECT_FALSE(load_profile(file, "0100", {0, 2}, why));
  EXPECT_NE(why.find("model: expected 0100, found \"00ff\""), std::string::npos) << why;
}

TEST_F(ProfileFile, BrokenOnesAreRefused) {
  edit("[3.0,0.0]", "[3.0]");
  EXPECT_NE(refusal().find("layers[1]: expected an array of 2 numbers"), std::string::npos);
  edit("[3.0]", "[3.0,-1]");
  EXPECT_NE(refusal().find("found -1"), std::string::npos);
  edit("[3.0,-1]", "[3.0,1e999]");
  EXPECT_NE(refusal(), "");
  edit("\"expertflow_profile\":1", "\"expertflow_profile\":2");
  EXPECT_NE(refusal(), "");
  std::ofstream(file) << "{\"expertflow_profile\":1";
  EXPECT_NE(refusal().find("expected a JSON object"), std::string::npos);
}

TEST(Fingerprint, TellsModelsApart) {
  const auto of = [](const char* name) { return model_fingerprint(*open_model(hf_fixture(name))); };
  EXPECT_EQ(of("olmoe"), of("olmoe"));
  EXPECT_NE(of("olmoe"), of("mixtral"));
  EXPECT_EQ(of("olmoe").size(), 16u);
}

}  // namespace
}  // namespace ef::testing
