// What can be said to the command line, and how it answers what it does not understand.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>

#include <cctype>
#include <cstdlib>
#include <set>
#include <sstream>

#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

const std::vector<std::string> kCommands = {"run", "inspect", "verify", "perplexity", "widen", "pack"};

// "ctx-size" of a help entry with --ctx-size; empty if it has no long name.
std::string first_long(const std::string& entry) {
  size_t at = entry.find("--");
  if (at == std::string::npos) return "";
  size_t end = at += 2;
  while (end < entry.size() && (std::isalnum(static_cast<unsigned char>(entry[end])) || entry[end] == '-')) ++end;
  return entry.substr(at, end - at);
}

// A run of the mixtral fixture with a prompt of ids.
Arguments ids_run(const Arguments& more = {}) {
  return Arguments{"run", "-m", hf("mixtral"), "--token-ids", "5,6,7", "-n", "2", "--temp", "0"} + more;
}

TEST(CliFlags, HelpAndVersion) {
  auto result = expertflow({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const auto& command : kCommands) EXPECT_TRUE(holds(result.out, command)) << command;
  result = expertflow({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "expertflow 0.1.0\n");
}

// Every flag, of every command, beside the variable that sets it.
TEST(CliFlags, HelpNamesTheEnvironmentTwinOfEveryFlag) {
  for (const auto& command : kCommands) {
    const auto result = expertflow({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    std::istringstream lines(result.out);
    int flags = 0;
    // A flag's description may go over several lines: up to the next flag.
    std::string entry;
    const auto check = [&] {
      const std::string flag = first_long(entry);
      if (flag.empty() || flag == "help") return;
      std::string name = "EXPERTFLOW_" + flag;
      for (char& c : name) c = c == '-' ? '_' : char(std::toupper(c));
      EXPECT_TRUE(holds(entry, name)) << command << ": " << name << " in: " << entry;
      ++flags;
    };
    for (std::string line; std::getline(lines, line);) {
      const size_t word = line.find_first_not_of(' ');
      if (word != std::string::npos && word > 0 && line[word] == '-') check(), entry.clear();
      entry += line + "\n";
    }
    check();
    EXPECT_GE(flags, command == "widen" ? 1 : command == "pack" ? 4 : command == "inspect" ? 6 : 15) << command;
  }
}

TEST(CliFlags, OutputThatCannotBeWrittenIsAnError) {
  const std::string shell = std::string(EF_CLI) + " run -q -m " + hf("mixtral") + " --token-ids 1,2,3 -n 2 --temp 0 ";
  const auto run = [&](const std::string& redirection) {
    return std::system((shell + redirection + " 2>/dev/null").c_str());
  };
  EXPECT_EQ(WEXITSTATUS(run(">/dev/null")), 0);
  EXPECT_EQ(WEXITSTATUS(run(">/dev/full")), 4);
  EXPECT_EQ(WEXITSTATUS(run(">&-")), 4);
  EXPECT_EQ(WEXITSTATUS(std::system((shell + ">/dev/null 2>&-").c_str())), 0);  // messages are not the work
  EXPECT_EQ(WEXITSTATUS(std::system((shell + ">/dev/null 2>/dev/full").c_str())), 0);
}

TEST(CliFlags, NumbersOutOfRangeAreRefused) {
  EXPECT_REFUSED(expertflow(ids_run({"--logit-bias", "5+1e40"})), 2, "--logit-bias", "5+1e40");
  EXPECT_REFUSED(expertflow(ids_run({"--max-kv-cache-memory", "0"})), 2, "max-kv-cache-memory");
  EXPECT_REFUSED(expertflow(ids_run({"--max-kv-cache-memory", "200%"})), 2, "max-kv-cache-memory");
}

TEST(CliFlags, UnknownWordsAreRefusedByName) {
  EXPECT_REFUSED(expertflow({"run", "-m", hf("mixtral"), "--no-such-flag"}), 2, "--no-such-flag");
  EXPECT_REFUSED(expertflow({"inspect", "-m", hf("mixtral"), "--temp", "1"}), 2, "--temp");
  EXPECT_REFUSED(expertflow({"fly"}), 2, "fly");
  EXPECT_REFUSED(expertflow(ids_run({"stray"})), 2, "stray");
  EXPECT_REFUSED(expertflow({}), 2, "subcommand");
}

TEST(CliFlags, ValuesOutOfRangeAreRefusedByName) {
  EXPECT_REFUSED(expertflow(ids_run({"-c", "many"})), 2, "ctx-size", "many");
  EXPECT_REFUSED(expertflow(ids_run({"--top-p", "1.5"})), 2, "top_p", "1.5");
  EXPECT_REFUSED(expertflow(ids_run({"--seed", "-2"})), 2, "--seed", "-2");
  EXPECT_REFUSED(expertflow(ids_run({"-l", "12"})), 2, "--logit-bias", "12");
  EXPECT_REFUSED(expertflow(ids_run({"-c", "-7"})), 2, "ctx-size", "-7");
  EXPECT_REFUSED(expertflow({"run", "-m", hf("mixtral"), "-p", "x", "-n", "-2"}), 2, "--predict", "-2");
  EXPECT_REFUSED(expertflow({"serve", "-m", hf("mixtral"), "--port", "0", "-n", "-2"}), 2, "--predict", "-2");
  EXPECT_REFUSED(expertflow(ids_run({"-c", "9223372036854775807"})), 2, "ctx-size");
  EXPECT_REFUSED(expertflow(ids_run({"-t", "-1"})), 2, "threads", "-1");
  EXPECT_REFUSED(expertflow(ids_run({"--isa", "mmx"})), 2, "mmx", "reference");
  EXPECT_REFUSED(expertflow(ids_run({"--eviction-policy", "mru"})), 2, "mru", "lfru");
  EXPECT_REFUSED(expertflow(ids_run({"-ctk", "q8_0", "-ctv", "q8_0"})), 2, "q8_0", "f16");
  EXPECT_REFUSED(expertflow(ids_run({"-ctk", "f32"})), 2, "cache-type-v", "f32", "f16");
  EXPECT_REFUSED(expertflow(ids_run({"--offload-device", "cuda"})), 2, "offload-device", "cuda");
  EXPECT_REFUSED(expertflow(ids_run({"--io", "aio"})), 2, "io: expected", "aio", "uring");
  EXPECT_REFUSED(expertflow(ids_run({"--direct-io", "yes"})), 2, "direct-io", "yes", "auto");
  EXPECT_REFUSED(expertflow(ids_run({"--io-depth", "0"})), 2, "io-depth", "0");
  EXPECT_REFUSED(expertflow({"run", "-m", hf("mixtral"), "--token-ids", "1,x"}), 2, "--token-ids", "1,x");
  EXPECT_REFUSED(expertflow({"run", "--token-ids", "1"}), 2, "--model");
  EXPECT_REFUSED(expertflow({"perplexity", "-m", demo()}), 2, "--file");
  EXPECT_REFUSED(expertflow({"perplexity", "-m", demo(), "-f", demo(), "--chunk", "1"}), 2, "--chunk", "1");
}

// F9: a flag that would change nothing is a misunderstanding.
TEST(CliFlags, F9_FlagsWithoutEffectAreRefused) {
  for (const Arguments& flags : std::vector<Arguments>{{"--ignore-eos"},
                                                       {"--special"},
                                                       {"-r", "x"},
                                                       {"-p", "x"},
                                                       {"-f", "x"},
                                                       {"--conversation"},
                                                       {"--no-display-prompt"},
                                                       {"--tokenizer-pre", "qwen2"},
                                                       {"--system-prompt", "x"},
                                                       {"--chat-template", "x"},
                                                       {"--chat-template-file", "x"},
                                                       {"--chat-template-kwargs", "{}"},
                                                       {"--single-turn"}}) {
    const auto result = expertflow(ids_run(flags));
    EXPECT_EQ(result.exit_code, 2) << flags[0];
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(holds(result.err, "effect")) << result.err;
  }
  const Arguments once = {"run", "-m", demo(), "-p", "Once", "-n", "1"};
  EXPECT_REFUSED(expertflow(once + Arguments{"-sys", "be kind"}), 2, "--system-prompt", "conversation");
  EXPECT_REFUSED(expertflow(once + Arguments{"-st"}), 2, "--single-turn");
  EXPECT_REFUSED(expertflow(once + Arguments{"-cnv", "-no-cnv"}), 2, "--conversation", "--no-conversation");
  EXPECT_REFUSED(expertflow(once + Arguments{"-cnv", "--no-display-prompt"}), 2, "--no-display-prompt");
  EXPECT_REFUSED(expertflow(once + Arguments{"-f", "README.md"}), 2, "--prompt", "--file");
  EXPECT_REFUSED(expertflow({"verify", "-m", hf("mixtral"), "--expert-memory", "40%"}), 2, "--expert-memory");
  EXPECT_REFUSED(expertflow({"verify", "-m", hf("mixtral"), "-c", "100"}), 2, "ctx-size", "100");
  EXPECT_REFUSED(expertflow({"perplexity", "-m", demo(), "-f", demo(), "--min-document", "3"}), 2, "--min-document");
}

TEST(CliFlags, ExitCodesByCause) {
  const TempFolder folder;
  write_file(folder.path / "bad.gguf", "GGUF is not enough");
  std::filesystem::create_directory(folder.path / "empty");
  // 3: the model
  EXPECT_REFUSED(expertflow({"inspect", "-m", "/no/such/model"}), 3, "/no/such/model");
  EXPECT_REFUSED(expertflow({"inspect", "-m", folder.path / "bad.gguf"}), 3, "bad.gguf");
  EXPECT_REFUSED(expertflow({"inspect", "-m", folder.path / "empty"}), 3, "empty");
  EXPECT_REFUSED(expertflow({"run", "-m", hf("mixtral"), "-p", "text"}), 3, "tokenizer", "--token-ids");
  // 2: what was asked for
  EXPECT_REFUSED(expertflow({"run", "-m", demo(), "-f", "/no/such/prompt"}), 2, "--file", "/no/such/prompt");
  // 4: the device, here a disk that cannot be written
  EXPECT_EQ(expertflow({"widen", hf("mixtral"), "/dev/full/out", "2", "2"}).exit_code, 4);
  // 5: the request
  EXPECT_EQ(expertflow({"run", "-q", "-m", hf("mixtral"), "--token-ids", "5,256"}).exit_code, 5);
}

TEST(CliFlags, TextOnStandardOutputTheRestOnStandardError) {
  auto result = expertflow(ids_run());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.find_first_not_of("0123456789,\n"), std::string::npos) << result.out;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), ','), 1) << result.out;
  for (const char* part : {"memory:", "loading", "prompt:", "experts:", "hit rate"})
    EXPECT_TRUE(holds(result.err, part)) << part << " in: " << result.err;
  const auto quiet = expertflow(ids_run({"-q"}));
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.out, result.out);
  EXPECT_EQ(quiet.err, "");
}

size_t generated(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return size_t(std::count(result.out.begin(), result.out.end(), ',')) + 1;
}

TEST(CliFlags, EnvironmentTwins) {
  const Arguments run = {"run", "-m", hf("mixtral"), "--token-ids", "5,6,7"};
  EXPECT_EQ(generated(expertflow(run, {{"EXPERTFLOW_PREDICT", "3"}})), 3u);
  EXPECT_EQ(generated(expertflow(run + Arguments{"-n", "5"}, {{"EXPERTFLOW_PREDICT", "3"}})), 5u);
  EXPECT_EQ(generated(expertflow(
                {"run"},
                {{"EXPERTFLOW_MODEL", hf("mixtral")}, {"EXPERTFLOW_TOKEN_IDS", "5,6,7"}, {"EXPERTFLOW_PREDICT", "4"}})),
            4u);
  for (const char* yes : {"1", "on", "true", "yes"}) {
    const auto result = expertflow(run + Arguments{"-n", "1"}, {{"EXPERTFLOW_QUIET", yes}});
    EXPECT_EQ(result.err, "") << yes;
  }
  for (const char* no : {"0", "off", "false"}) {
    const auto result = expertflow(run + Arguments{"-n", "1"}, {{"EXPERTFLOW_QUIET", no}});
    EXPECT_NE(result.err, "") << no;
  }
  EXPECT_REFUSED(expertflow(run, {{"EXPERTFLOW_QUIET", "maybe"}}), 2, "maybe");
  EXPECT_REFUSED(expertflow(run, {{"EXPERTFLOW_PREDICT", "few"}}), 2, "few");
  EXPECT_REFUSED(expertflow(run, {{"EXPERTFLOW_EXPERT_MEMORY", "1"}}), 2, "too few");
  EXPECT_REFUSED(expertflow(run, {{"EXPERTFLOW_IGNORE_EOS", "1"}}), 2, "--ignore-eos");
}

TEST(CliFlags, VariablesAreReadBesideTheirFlags) {
  const auto refused = [](const Arguments& arguments, const char* variable, const char* value) {
    EXPECT_REFUSED(expertflow(arguments, {{variable, value}}), 2, variable, value);
  };
  refused({"serve", "--port", "18081"}, "EXPERTFLOW_PORT", "abc");
  refused({"serve", "--parallel", "2"}, "EXPERTFLOW_PARALLEL", "abc");
  refused({"serve", "--no-prefix-cache"}, "EXPERTFLOW_NO_PREFIX_CACHE", "maybe");
  refused({"bench", "serve", "--requests", "10"}, "EXPERTFLOW_REQUESTS", "ten");
  // A number to serve, a list to bench.
  EXPECT_EQ(expertflow({"bench", "-m", demo(), "--dry-run"}, {{"EXPERTFLOW_PARALLEL", "1,4"}}).exit_code, 0);
}

// The model is not there, nor the folder.
TEST(CliFlags, WhatNeedsNoModelIsJudgedFirst) {
  for (const std::string flag :
       {"--max-queue=0", "--prefill-chunk=-1", "--aging-threshold=0", "--token-schedule-window=-1",
        "--token-schedule-batch=-1", "--parallel=0", "--sla-ttft=nan", "--sla-itl=0", "--cold=-1", "--warmup=nope",
        "--cors-origins=foo", "--temperature=-1"}) {
    const auto result = expertflow({"serve", "-m", "/nowhere", "--port=0", flag});
    const std::string named = flag.substr(2, flag.find('=') - 2);
    EXPECT_REFUSED(result, 2, named.c_str());
    EXPECT_FALSE(holds(result.err, "listening")) << result.err;
  }
  for (const char* flag : {"--record-trace", "--stats-json"})
    EXPECT_REFUSED(expertflow({"run", "-m", "/nowhere", flag, "/none/x"}), 4, flag, "/none/x");
}

TEST(CliFlags, NamesOfLlamaCli) {
  const auto expected = expertflow(ids_run());
  const auto same = expertflow(ids_run({"-ub", "2", "-b", "64", "-ctk", "f32", "-ctv", "f32", "-no-cnv", "-c", "64"}));
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.out, expected.out);
  EXPECT_EQ(
      expertflow({"run", "-m", hf("mixtral"), "--token-ids", "5,6,7", "--n-predict", "2", "--temperature", "0"}).out,
      expected.out);
}

// F8, F9, F11: what was asked for is what runs, or a refusal with the numbers.
TEST(CliFlags, F8_ExplicitFiguresAreHonoured) {
  auto result = expertflow(ids_run({"--expert-memory", "50%", "-c", "100"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(holds(result.err, "(50.0 %); '50%'")) << result.err;
  EXPECT_TRUE(holds(result.err, "for 100 tokens")) << result.err;
  result = expertflow(ids_run({"--expert-memory", "100KiB"}));
  EXPECT_TRUE(holds(result.err, "experts: 100.00 KiB of ")) << result.err;
  // More than all experts: all of them, and it says so.
  result = expertflow(ids_run({"--expert-memory", "1GiB", "--max-kv-cache-memory", "1GiB"}));
  EXPECT_TRUE(holds(result.err, "(100.0 %); '1GiB', more than all experts take")) << result.err;
  // The model's own context where nothing is asked: 512.
  EXPECT_TRUE(holds(expertflow(ids_run()).err, "for 512 tokens"));
  EXPECT_TRUE(holds(expertflow(ids_run({"-c", "1000"})).err, "longer than the 512"));
}

TEST(CliFlags, F11_MemoryThatCannotWorkIsRefusedWithTheNumbers) {
  EXPECT_REFUSED(expertflow(ids_run({"--expert-memory", "lots"})), 2, "lots", "40%", "auto");
  EXPECT_REFUSED(expertflow(ids_run({"--expert-memory", "0"})), 2, "more than 0");
  EXPECT_REFUSED(expertflow(ids_run({"--expert-memory", "120%"})), 2, "at most 100%");
  EXPECT_REFUSED(expertflow(ids_run({"--expert-memory", "1000"})), 2, "1000 bytes are too few", "largest expert takes");
  EXPECT_REFUSED(expertflow(ids_run({"-c", "1000000000"})), 2, "max-kv-cache-memory", "1000000000 tokens takes",
                 "--ctx-size");
  EXPECT_REFUSED(expertflow(ids_run({"--max-kv-cache-memory", "1KiB"})), 2, "512 tokens takes", "1KiB allows 1.00 KiB");
}

}  // namespace
}  // namespace ef::testing
