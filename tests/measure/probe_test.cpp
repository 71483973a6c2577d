// Probes answer, or say why not; how fast this machine is, is not the tests' business.
#include <gtest/gtest.h>

#include <fstream>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/measure/probe.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

TEST(Probe, MemoryReadsWhatItWrote) {
  ThreadPool pool(2);
  const MemoryPeak peak = measure_memory_read(pool, 16 << 20);
  EXPECT_GT(peak.bytes_per_second, 0);
  EXPECT_EQ(peak.buffer_bytes, 16u << 20);
}

// A new instruction set needs a row in the probe's table too.
TEST(Probe, ComputeKnowsEveryInstructionSet) {
  ThreadPool pool(1);
  for (const Isa isa : supported_isas()) {
    const ComputePeak peak = measure_compute(pool, std::string(isa_name(isa)));
    EXPECT_EQ(peak.f32 > 0, isa != Isa::kReference) << isa_name(isa);
    EXPECT_EQ(peak.half > 0, isa != Isa::kReference) << isa_name(isa);
    EXPECT_EQ(peak.blocks > 0, isa != Isa::kReference) << isa_name(isa);
  }
}

TEST(Probe, DiskSaysWhyNot) {
  const TempFolder folder;
  EXPECT_NE(measure_disk_read(folder.path / "absent").reason, "");
  const auto small = folder.path / "small";
  std::ofstream(small) << "few bytes";
  EXPECT_NE(measure_disk_read(small).reason, "");
  EXPECT_EQ(measure_disk_read(small).bytes_per_second, 0);
}

// tmpfs takes O_DIRECT on some kernels and refuses it on others: a figure or a reason, never neither.
TEST(Probe, DiskReadsPastItsEnd) {
  const TempFolder folder;
  const auto file = folder.path / "file";
  std::ofstream(file) << std::string((2 << 20) + 5, 'x');
  const DiskPeak peak = measure_disk_read(file, 0.01);
  EXPECT_NE(peak.bytes_per_second > 0, !peak.reason.empty());
}

TEST(Probe, PageCache) {
  const TempFolder folder;
  const auto file = folder.path / "file";
  std::ofstream(file) << std::string(1 << 20, 'x');
  EXPECT_GT(cached_share(file), 0.9) << "just written";
  EXPECT_LT(cached_share(folder.path / "absent"), 0);
}

TEST(Probe, Machine) {
  const MachineFacts facts = machine_facts();
  EXPECT_GE(facts.processors, 1);
  EXPECT_GT(facts.memory_bytes, 1u << 20);
  EXPECT_NE(facts.kernel, "");
}

}  // namespace
}  // namespace ef::testing
