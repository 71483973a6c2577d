// Readers of experts: one suite for every way to read, over the layouts that files have. What a slot holds afterwards
// is compared with the store's plain reads, one after the other through the page cache.
#include "expertflow/transfer/disk_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "expertflow/base/errors.h"
#include "tests/model/editable_checkpoint.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

struct OpenStore {
  explicit OpenStore(Checkpoint c)
      : checkpoint(std::move(c)), store(checkpoint.directory, binding_of(checkpoint).experts) {}
  Checkpoint checkpoint;
  ExpertStore store;
};

// The bytes of an expert's parts; what lies between them is nobody's.
std::vector<std::byte> parts_of(const ExpertLayout& layout, std::span<const std::byte> slot) {
  std::vector<std::byte> out;
  for (const ExpertPart& part : layout.parts)
    out.insert(out.end(), slot.begin() + long(part.offset), slot.begin() + long(part.offset + part.bytes));
  return out;
}

std::vector<std::byte> plain(const ExpertStore& store, ExpertKey key) {
  std::vector<std::byte> slot(store.slot_bytes(key.layer)), staging;
  store.fill(key, slot, staging);
  return parts_of(store.layout(key.layer), slot);
}

std::vector<std::byte> read(DiskReader& reader, const ExpertStore& store, ExpertKey key, int lane = 0) {
  PageBuffer slot(store.slot_bytes(key.layer));
  reader.fill(key, slot.bytes(), lane);
  return parts_of(store.layout(key.layer), slot.bytes());
}

std::string error_of(DiskReader& reader, const ExpertStore& store, ExpertKey key) {
  try {
    read(reader, store, key);
  } catch (const DeviceError& e) {
    return e.what();
  }
  return "";
}

struct Way {
  const char* name;
  IoKind io;
  DirectIo direct;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class DiskReaders : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (GetParam().io == IoKind::kUring) {
      const UringQueues made = make_uring_queues(1, {});
      if (made.queues.empty()) GTEST_SKIP() << made.why_not;
    }
  }
  DiskReaderOptions options() const {
    DiskReaderOptions o;
    o.io = GetParam().io;
    o.direct = GetParam().direct;
    o.lanes = 2;
    return o;
  }
};

TEST_P(DiskReaders, EveryLayoutFillsToTheSameBytes) {
  std::vector<Checkpoint> checkpoints;
  for (const char* name :
       {"mixtral", "qwen3_moe", "gpt_oss", "gpt_oss-mxfp4-clamp", "qwen3_moe-fp8", "deepseek_v3", "phimoe"})
    checkpoints.push_back(open_checkpoint(hf_fixture(name)));
  for (const char* name : {"mixtral", "gpt_oss-mxfp4-clamp"})
    checkpoints.push_back(open_checkpoint(gguf_fixture(name)));
  for (Checkpoint& checkpoint : checkpoints) {
    const OpenStore s(std::move(checkpoint));
    DiskReader reader(s.store, options());
    for (const LayerExperts& layer : s.store.layers())
      for (ExpertId e = 0; e < s.store.experts(layer.layer); ++e)
        ASSERT_EQ(read(reader, s.store, {layer.layer, e}, e % 2), plain(s.store, {layer.layer, e}))
            << s.checkpoint.path << " layer " << layer.layer << " expert " << e;
    EXPECT_TRUE(reader.state().kind == (GetParam().io == IoKind::kUring ? "io_uring" : "pread"));
    EXPECT_EQ(reader.state().text().starts_with(reader.state().kind), true);
  }
}

// Experts larger than a lane's staging memory and than one read.
TEST_P(DiskReaders, LargeExpertsPassThroughStagingInBatches) {
  const TempFolder folder;
  // One expert of three matrices [rows, 2048] in F16; a file of its own pattern, at an odd offset.
  const int64_t rows = 1501, cols = 2048;
  const uint64_t matrix = uint64_t(rows * cols) * 2, odd = 777;
  const auto path = folder.path / "experts.bin";
  {
    std::vector<uint32_t> words((odd + 3 * matrix) / 4 + 1);
    uint32_t v = 1;
    for (uint32_t& w : words) w = v = v * 1664525 + 1013904223;
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(words.data()), long(words.size() * 4));
  }
  TensorDirectory directory;
  directory.add_file(std::make_shared<FileSource>(path));
  LayerExperts layer;
  layer.experts.resize(1);
  for (int p = 0; p < 3; ++p) {
    layer.layout.parts.push_back({ExpertRole(p), Format::kF16, rows, cols, layer.layout.bytes, matrix});
    layer.layout.bytes += (matrix + 63) / 64 * 64;
    PartSource source;
    source.role = ExpertRole(p);
    source.tensor = {"t" + std::to_string(p), Format::kF16, {rows, cols}, 0, odd + uint64_t(p) * matrix, matrix};
    layer.experts[0].push_back(source);
  }
  const ExpertStore store(directory, {layer});
  EXPECT_LT(DiskReader::staging_bytes(store, 1), 3 * matrix);
  EXPECT_GT(store.units({0, 0}).size(), 15u);
  DiskReader reader(store, options());
  EXPECT_TRUE(read(reader, store, {0, 0}) == plain(store, {0, 0}));
}

TEST_P(DiskReaders, ErrorsNameTheExpertAndPass) {
  const OpenStore s(open_checkpoint(hf_fixture("qwen3_moe")));
  bool broken = false;
  DiskReaderOptions o = options();
  o.faults.result = [&](uint64_t, std::span<std::byte>, int64_t result) -> int64_t { return broken ? -EIO : result; };
  DiskReader reader(s.store, o);
  broken = true;
  const std::string message = error_of(reader, s.store, {1, 4});
  EXPECT_NE(message.find("layer 1, expert 4"), std::string::npos) << message;
  EXPECT_NE(message.find("model.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find("Input/output error"), std::string::npos) << message;
  broken = false;
  EXPECT_EQ(read(reader, s.store, {1, 4}), plain(s.store, {1, 4}));
}

TEST_P(DiskReaders, F12_AFileThatChangesWhileItIsReadIsRefused) {
  const TempFolder folder;
  const auto file = folder.path / "m.gguf";
  std::filesystem::copy_file(gguf_fixture("mixtral"), file);
  const timespec before[2] = {{1'000'000, 0}, {1'000'000, 0}}, after[2] = {{2'000'000, 0}, {2'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), before, 0), 0);
  const OpenStore s(open_checkpoint(file));
  DiskReader reader(s.store, options());
  EXPECT_EQ(error_of(reader, s.store, {0, 0}), "");
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), after, 0), 0);
  EXPECT_NE(error_of(reader, s.store, {0, 0}).find("changed since it was opened"), std::string::npos);
}

TEST_P(DiskReaders, AFileThatIsCutShortIsRefused) {
  const TempFolder folder;
  const auto file = folder.path / "m.gguf";
  std::filesystem::copy_file(gguf_fixture("mixtral"), file);
  const OpenStore s(open_checkpoint(file));
  DiskReader reader(s.store, options());
  std::filesystem::resize_file(file, 4096);
  EXPECT_NE(error_of(reader, s.store, {1, 3}), "");
}

TEST_P(DiskReaders, LanesWorkAtOnce) {
  const OpenStore s(open_checkpoint(gguf_fixture("mixtral")));
  DiskReader reader(s.store, options());
  const auto work = [&](int lane) {
    for (int i = 0; i < 10; ++i)
      for (ExpertId e = 0; e < 8; ++e) EXPECT_EQ(read(reader, s.store, {2, e}, lane), plain(s.store, {2, e}));
  };
  std::thread other(work, 1);
  work(0);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Ways, DiskReaders,
                         ::testing::Values(Way{"UringDirect", IoKind::kUring, DirectIo::kAuto},
                                           Way{"UringBuffered", IoKind::kUring, DirectIo::kOff},
                                           Way{"PreadDirect", IoKind::kPread, DirectIo::kAuto},
                                           Way{"PreadBuffered", IoKind::kPread, DirectIo::kOff}),
                         [](const auto& info) { return info.param.name; });

// F5, F6: what was refused on the way is there to be seen, with its errno; experts come all the same.
TEST(DiskReader, F5_F6_RefusalsAreNotedAndNothingIsLost) {
  const OpenStore s(open_checkpoint(gguf_fixture("mixtral")));
  DiskReaderOptions o;
  o.faults.open_direct = [] { return EINVAL; };
  o.faults.create_ring = [] { return EPERM; };
  DiskReader reader(s.store, o);
  EXPECT_EQ(reader.state().kind, "pread");
  EXPECT_FALSE(reader.state().direct);
  EXPECT_EQ(reader.state().text(), "pread, buffered, 4 at once");
  ASSERT_EQ(reader.state().notes.size(), 2u);
  EXPECT_TRUE(reader.state().notes[0].warning);
  EXPECT_NE(reader.state().notes[0].text.find("mixtral.gguf"), std::string::npos);
  EXPECT_NE(reader.state().notes[0].text.find("O_DIRECT: Invalid argument (errno 22)"), std::string::npos);
  EXPECT_NE(reader.state().notes[1].text.find("not io_uring"), std::string::npos);
  EXPECT_EQ(read(reader, s.store, {1, 1}), plain(s.store, {1, 1}));
}

TEST(DiskReader, F6_BuffersThatMayNotBePinned) {
  if (make_uring_queues(1, {}).queues.empty()) GTEST_SKIP() << "no io_uring";
  const OpenStore s(open_checkpoint(gguf_fixture("mixtral")));
  DiskReaderOptions o;
  o.faults.pin_memory = [] { return ENOMEM; };
  DiskReader reader(s.store, o);
  EXPECT_FALSE(reader.state().registered);
  ASSERT_FALSE(reader.state().notes.empty());
  EXPECT_NE(reader.state().notes.back().text.find("errno 12"), std::string::npos);
  EXPECT_EQ(read(reader, s.store, {1, 1}), plain(s.store, {1, 1}));
}

TEST(DiskReader, WhatWasAskedForAndIsRefusedIsAnError) {
  const OpenStore s(open_checkpoint(gguf_fixture("mixtral")));
  DiskReaderOptions o;
  o.io = IoKind::kUring;
  o.faults.create_ring = [] { return ENOSYS; };
  EXPECT_THROW(DiskReader(s.store, o), DeviceError);
  o = {};
  o.direct = DirectIo::kOn;
  o.faults.open_direct = [] { return EINVAL; };
  EXPECT_THROW(DiskReader(s.store, o), DeviceError);
  o = {};
  o.lanes = 0;
  EXPECT_THROW(DiskReader(s.store, o), ConfigError);
}

}  // namespace
}  // namespace ef::testing
