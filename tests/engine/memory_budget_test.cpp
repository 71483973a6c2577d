#include "expertflow/engine/memory_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "expertflow/base/errors.h"
#include "expertflow/cache/policy.h"

namespace ef {
namespace {

namespace fs = std::filesystem;
using Kind = BudgetRequest::Kind;

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ParseBudget, Bytes) {
  const auto bytes = [](const char* text) {
    const BudgetRequest r = parse_budget(text);
    EXPECT_EQ(r.kind, Kind::kBytes) << text;
    EXPECT_EQ(r.text, text);
    return r.bytes;
  };
  EXPECT_EQ(bytes("6GiB"), 6 * kGiB);
  EXPECT_EQ(bytes("6 GiB"), 6 * kGiB);
  EXPECT_EQ(bytes("6gib"), 6 * kGiB);
  EXPECT_EQ(bytes("6G"), 6 * kGiB);
  EXPECT_EQ(bytes("6Gi"), 6 * kGiB);
  EXPECT_EQ(bytes("6GB"), 6'000'000'000u);
  EXPECT_EQ(bytes("512MiB"), 512 * kMiB);
  EXPECT_EQ(bytes("1.5GiB"), 3 * kGiB / 2);
  EXPECT_EQ(bytes("64KiB"), 65536u);
  EXPECT_EQ(bytes("64kB"), 64000u);
  EXPECT_EQ(bytes("2TiB"), 2048 * kGiB);
  EXPECT_EQ(bytes("123456"), 123456u);
  EXPECT_EQ(bytes("123456B"), 123456u);
}

TEST(ParseBudget, SharesSlotsAndWords) {
  EXPECT_EQ(parse_budget("40%").kind, Kind::kShare);
  EXPECT_DOUBLE_EQ(parse_budget("40%").share, 0.4);
  EXPECT_DOUBLE_EQ(parse_budget("12.5 %").share, 0.125);
  EXPECT_DOUBLE_EQ(parse_budget("100%").share, 1.0);
  EXPECT_EQ(parse_budget("12 slots").kind, Kind::kSlots);
  EXPECT_EQ(parse_budget("12slots").slots, 12u);
  EXPECT_EQ(parse_budget("1 slot").slots, 1u);
  EXPECT_EQ(parse_budget("auto").kind, Kind::kAuto);
  EXPECT_EQ(parse_budget("AUTO").kind, Kind::kAuto);
  EXPECT_EQ(parse_budget("min").kind, Kind::kMinimum);
}

TEST(ParseBudget, EverythingElseIsRefusedWithTheForms) {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "6 apples",
                           "-1GiB",
                           "0",
                           "0%",
                           "101%",
                           "-5%",
                           "1e400",
                           "nan",
                           "inf",
                           "nan%",
                           "6GiBs",
                           "6G B i",
                           "1.5 slots",
                           "0 slots",
                           "-3 slots",
                           "99999999999999999999",
                           "1.5",
                           "0x10",
                           "9000000TiB",
                           "auto%",
                           "6,5GiB",
                           "all"}) {
    const std::string message = refusal([&] { parse_budget(text); });
    EXPECT_TRUE(contains(message, fmt::format("expert memory '{}'", text))) << text << ": " << message;
    EXPECT_TRUE(contains(message, "expected bytes (6GiB, 512MiB), a share")) << text << ": " << message;
  }
}

TEST(FormatBytes, PicksTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(40 * kMiB), "40.00 MiB");
  EXPECT_EQ(format_bytes(5 * kGiB / 2), "2.50 GiB");
  EXPECT_EQ(format_bytes(3000 * kGiB), "2.93 TiB");
}

// 8 GiB of experts in slots of 8 MiB, 16 layers; 1 GiB of everything else.
BudgetFacts facts() {
  BudgetFacts f;
  f.expert_bytes = 8 * kGiB;
  f.largest_slot = 8 * kMiB;
  f.layer_slots = 16 * 8 * kMiB;
  f.weights_bytes = 512 * kMiB;
  f.kv_bytes = 384 * kMiB;
  f.scratch_bytes = 128 * kMiB;
  return f;
}
MemoryInfo machine(uint64_t available) {
  MemoryInfo m;
  m.available = available;
  return m;
}
Budget resolve(const char* text, const MemoryInfo& memory) {
  return resolve_budget(parse_budget(text), facts(), memory);
}

TEST(ResolveBudget, FactsAreInWholePages) {
  const CacheGeometry geometry{{{4, 5000}, {0, 0}, {8, 4096}}, 4096};
  const BudgetFacts f = budget_facts(geometry);
  EXPECT_EQ(f.expert_bytes, 4u * 8192 + 8 * 4096);
  EXPECT_EQ(f.largest_slot, 8192u);
  EXPECT_EQ(f.layer_slots, 8192u + 4096);
}

TEST(ResolveBudget, AutoTakesWhatIsLeft) {
  // 5 GiB - 1 GiB for the rest - 5 % margin (256 MiB)
  EXPECT_EQ(resolve("auto", machine(5 * kGiB)).bytes, 4 * kGiB - 256 * kMiB);
  // The margin is at least 128 MiB and at most 1 GiB.
  EXPECT_EQ(resolve("auto", machine(2 * kGiB)).bytes, kGiB - 128 * kMiB);
  BudgetFacts large = facts();
  large.expert_bytes = 900 * kGiB;
  EXPECT_EQ(resolve_budget(parse_budget("auto"), large, machine(100 * kGiB)).bytes, 98 * kGiB);
}

TEST(ResolveBudget, AutoNeedsNoMoreThanAllExperts) {
  const Budget budget = resolve("auto", machine(64 * kGiB));
  EXPECT_EQ(budget.bytes, 8 * kGiB);
  EXPECT_TRUE(contains(budget.explanation, "8.00 GiB of 8.00 GiB (100.0 %)")) << budget.explanation;
}

MemoryInfo capped(uint64_t available, uint64_t cap) {
  MemoryInfo m = machine(available);
  m.cap = MemoryInfo::Cap{cap, "--device-memory"};
  return m;
}

TEST(ResolveBudget, ACapIsTakenWhole) {
  // The margin of 8 GiB (5 %, rounded down to a byte) is free anyway where the cap is 4 GiB.
  EXPECT_EQ(resolve("auto", capped(8 * kGiB, 4 * kGiB)).bytes, 3 * kGiB);
  // A cap that leaves less than the margin: the margin holds. A cap beyond what there is changes nothing.
  EXPECT_EQ(resolve("auto", capped(8 * kGiB, 8 * kGiB - 100 * kMiB)).bytes, 7 * kGiB - 8 * kGiB / 20);
  EXPECT_EQ(resolve("auto", capped(5 * kGiB, 9 * kGiB)).bytes, 4 * kGiB - 256 * kMiB);
  const std::string message = refusal([] { resolve("4GiB", capped(64 * kGiB, 4 * kGiB)); });
  EXPECT_TRUE(contains(message,
                       "need 1.00 GiB more than the 4.00 GiB that are left (available 64.00 GiB, at most 4.00 "
                       "GiB may be used (--device-memory))"))
      << message;
}

TEST(ResolveBudget, AutoRespectsTheCgroup) {
  MemoryInfo memory = machine(64 * kGiB);
  memory.cgroup = MemoryInfo::Cgroup{"/sys/fs/cgroup/job", 6 * kGiB, 3 * kGiB, 2 * kGiB};
  // 6 - (3 - 2) = 5 GiB are left.
  const Budget budget = resolve("auto", memory);
  EXPECT_EQ(budget.bytes, 4 * kGiB - 256 * kMiB);
  EXPECT_TRUE(contains(budget.explanation, "/sys/fs/cgroup/job: limit 6.00 GiB, used 3.00 GiB")) << budget.explanation;
}

TEST(ResolveBudget, ExplicitFiguresAreExact) {
  EXPECT_EQ(resolve("2GiB", machine(64 * kGiB)).bytes, 2 * kGiB);
  EXPECT_EQ(resolve("25%", machine(64 * kGiB)).bytes, 2 * kGiB);
  EXPECT_EQ(resolve("12 slots", machine(64 * kGiB)).bytes, 12 * 128 * kMiB);
  EXPECT_EQ(resolve("min", machine(64 * kGiB)).bytes, 8 * kMiB);
  EXPECT_EQ(resolve("100%", machine(64 * kGiB)).bytes, 8 * kGiB);
}

TEST(ResolveBudget, MoreThanAllExpertsIsCappedAndSaid) {
  for (const char* text : {"20GiB", "5000 slots"}) {
    const Budget budget = resolve(text, machine(64 * kGiB));
    EXPECT_EQ(budget.bytes, 8 * kGiB);
  }
  EXPECT_TRUE(contains(resolve("20GiB", machine(64 * kGiB)).explanation, "'20GiB', more than all experts take"));
}

// The estimate must not be trusted over the user's flag, nor the flag over the machine: honour it and fit the rest, or
// refuse.
TEST(MemoryBudget, F8_ExplicitFlagIsHonouredOrRefused) {
  // auto would take 3.75 GiB here; an explicit 1 GiB and 4 GiB are taken as they are.
  EXPECT_EQ(resolve("1GiB", machine(5 * kGiB)).bytes, kGiB);
  EXPECT_EQ(resolve("4GiB", machine(5 * kGiB)).bytes, 4 * kGiB) << "exactly what is left";
  const std::string message = refusal([] { resolve("4097MiB", machine(5 * kGiB)); });
  EXPECT_EQ(message,
            "expert memory '4097MiB': experts 4.00 GiB and the rest 1.00 GiB (weights 512.00 MiB, KV cache 384.00 MiB, "
            "scratch 128.00 MiB) need 1.00 MiB more than the 5.00 GiB that are left (available 5.00 GiB)");
  // A larger KV cache, asked for by another flag, leaves auto less, not the user.
  BudgetFacts more_kv = facts();
  more_kv.kv_bytes += kGiB;
  EXPECT_EQ(resolve_budget(parse_budget("auto"), more_kv, machine(5 * kGiB)).bytes, 3 * kGiB - 256 * kMiB);
  // What is not known cannot refuse.
  EXPECT_EQ(resolve("4GiB", MemoryInfo{}).bytes, 4 * kGiB);
}

TEST(MemoryBudget, F9_EffectiveValueIsReportedForEveryForm) {
  struct Case {
    const char *text, *reported;
  };
  for (const Case c : {Case{"2GiB", "experts: 2.00 GiB of 8.00 GiB (25.0 %); '2GiB'"},
                       Case{"40%", "experts: 3.20 GiB of 8.00 GiB (40.0 %); '40%'"},
                       Case{"12 slots", "experts: 1.50 GiB of 8.00 GiB (18.8 %); '12 slots'"},
                       Case{"min", "experts: 8.00 MiB of 8.00 GiB (0.1 %); 'min'"},
                       Case{"20GiB", "experts: 8.00 GiB of 8.00 GiB (100.0 %); '20GiB', more than all experts take"}}) {
    EXPECT_EQ(resolve(c.text, machine(64 * kGiB)).explanation, c.reported);
  }
  EXPECT_EQ(resolve("auto", machine(5 * kGiB)).explanation,
            "experts: 3.75 GiB of 8.00 GiB (46.9 %); auto: available 5.00 GiB, minus weights 512.00 MiB, KV cache "
            "384.00 MiB, scratch 128.00 MiB, minus a margin of 256.00 MiB");
}

TEST(MemoryBudget, F11_FailsFastWithNumbers) {
  // Less than one expert.
  EXPECT_EQ(refusal([] { resolve("1MiB", machine(64 * kGiB)); }),
            "expert memory '1MiB': 1048576 bytes are too few: the largest expert takes 8388608 bytes (8.00 MiB); all "
            "experts take 8.00 GiB");
  EXPECT_TRUE(
      contains(refusal([] { resolve("0.01%", machine(64 * kGiB)); }), "the largest expert takes 8388608 bytes"));
  // A bare number is bytes; whoever meant GiB is told.
  EXPECT_TRUE(contains(refusal([] { resolve("6", machine(64 * kGiB)); }), "expert memory '6': 6 bytes are too few"));
  // The KV cache alone does not fit: no wrap around.
  BudgetFacts kv = facts();
  kv.kv_bytes = 100 * kGiB;
  EXPECT_TRUE(contains(refusal([&] { resolve_budget(parse_budget("auto"), kv, machine(5 * kGiB)); }),
                       "5.00 GiB are left (available 5.00 GiB); the rest needs 100.62 GiB"));
  EXPECT_TRUE(
      contains(refusal([&] { resolve_budget(parse_budget("1GiB"), kv, machine(5 * kGiB)); }), "KV cache 100.00 GiB"));
  // The memory cannot be queried.
  EXPECT_TRUE(contains(refusal([] { resolve("auto", MemoryInfo{}); }), "neither MemAvailable nor a cgroup limit"));
}

// A file tree as the kernel shows it.
class KernelTree : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "ef-memory-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  void file(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void meminfo() {
    file("proc/meminfo", "MemTotal:       24684084 kB\nMemFree:        21898424 kB\nMemAvailable:   16777216 kB\n");
  }
  MemoryInfo read() const { return read_memory_info(root_); }
  fs::path root_;
};

TEST_F(KernelTree, NothingReadableIsUnknown) {
  EXPECT_FALSE(read().left());
  EXPECT_EQ(read().text(), "available memory unknown");
}

TEST_F(KernelTree, WithoutCgroupMemAvailableDecides) {
  meminfo();
  EXPECT_EQ(read().left(), 16 * kGiB);
  EXPECT_FALSE(read().cgroup);
}

TEST_F(KernelTree, Version2TakesTheTightestOfTheGroupsAbove) {
  meminfo();
  file("proc/self/cgroup", "0::/user.slice/job.scope\n");
  file("sys/fs/cgroup/user.slice/memory.max", "4294967296\n");
  file("sys/fs/cgroup/user.slice/memory.current", "1073741824\n");
  file("sys/fs/cgroup/user.slice/memory.stat",
       "anon 805306368\nfile 268435456\ninactive_file 134217728\nactive_file 134217728\n");
  file("sys/fs/cgroup/user.slice/job.scope/memory.max", "max\n");
  file("sys/fs/cgroup/user.slice/job.scope/memory.current", "536870912\n");
  const MemoryInfo info = read();
  ASSERT_TRUE(info.cgroup);
  EXPECT_EQ(info.cgroup->path, (root_ / "sys/fs/cgroup/user.slice").string());
  EXPECT_EQ(info.cgroup->reclaimable, 192 * kMiB) << "inactive, and half of the active";
  EXPECT_EQ(info.left(), 4 * kGiB - (kGiB - 192 * kMiB));
  // A tighter limit below it wins.
  file("sys/fs/cgroup/user.slice/job.scope/memory.max", "1073741824\n");
  EXPECT_EQ(read().left(), 512 * kMiB);
}

TEST_F(KernelTree, Version2InAContainerSeesItsRoot) {
  meminfo();
  file("proc/self/cgroup", "0::/\n");
  file("sys/fs/cgroup/memory.max", "2147483648\n");
  file("sys/fs/cgroup/memory.current", "1073741824\n");
  EXPECT_EQ(read().left(), kGiB);
}

TEST_F(KernelTree, Version1) {
  meminfo();
  file("proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/box\n4:memory:/box/job\n0::/\n");
  const std::string job = "sys/fs/cgroup/memory/box/job/";
  file(job + "memory.limit_in_bytes", "9223372036854771712\n");
  file(job + "memory.usage_in_bytes", "1000\n");
  EXPECT_FALSE(read().cgroup) << "that number means: no limit";
  file(job + "memory.limit_in_bytes", "3221225472\n");
  file(job + "memory.usage_in_bytes", "2147483648\n");
  file(job + "memory.stat", "inactive_file 7\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
  EXPECT_EQ(read().left(), 2 * kGiB);
}

TEST_F(KernelTree, Version1InAContainerWithTheHostsPath) {
  meminfo();
  file("proc/self/cgroup", "4:memory:/docker/0123abcd\n");
  file("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  file("sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(read().left(), kGiB);
}

TEST_F(KernelTree, UsageAboveTheLimitLeavesNothing) {
  meminfo();
  file("proc/self/cgroup", "0::/\n");
  file("sys/fs/cgroup/memory.max", "1000\n");
  file("sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(read().left(), 0u);
}

TEST_F(KernelTree, PathsCannotLeaveTheMount) {
  meminfo();
  file("proc/self/cgroup", "0::/../../../escape\nbroken line\n::\n");
  file("escape/memory.max", "1\n");
  file("escape/memory.current", "0\n");
  EXPECT_FALSE(read().cgroup);
}

TEST(MemoryInfo, ThisMachineCanBeRead) {
  const MemoryInfo info = read_memory_info();
  ASSERT_TRUE(info.available) << "Linux has MemAvailable since 3.14";
  EXPECT_GT(*info.available, 0u);
}

}  // namespace
}  // namespace ef
