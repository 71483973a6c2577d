// Writers: what they write is parsed by the readers and, for the layout, by hand; faults leave nothing behind.
#include "expertflow/weights/writers.h"

#include <sys/resource.h>

#include <csignal>

#include "expertflow/weights/checkpoint.h"
#include "expertflow/weights/safetensors.h"
#include "tests/weights/file_bytes.h"

using namespace ef_test;
using ef::Format;
using ef::TensorDirectory;

namespace {

fs::path fixture(const std::string& name) { return fs::path(EF_FIXTURES) / name; }

/// Declares and writes every tensor, in pieces of at most `piece` bytes.
void copy_all(const TensorDirectory& from, ef::CheckpointWriter& writer, size_t piece) {
  for (const ef::TensorInfo& t : from.tensors()) writer.declare(t.name, t.format, t.shape);
  for (const ef::TensorInfo& t : from.tensors()) {
    const std::vector<std::byte> bytes = from.read(t);
    for (size_t at = 0; at < bytes.size(); at += piece) {
      writer.write(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
  }
  writer.finish();
}

void expect_equal(const TensorDirectory& a, const TensorDirectory& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const ef::TensorInfo& t : a.tensors()) {
    const ef::TensorInfo* other = b.find(t.name);
    ASSERT_NE(other, nullptr) << t.name;
    EXPECT_EQ(t.format, other->format) << t.name;
    EXPECT_EQ(t.shape, other->shape) << t.name;
    EXPECT_EQ(a.read(t), b.read(*other)) << t.name;
  }
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::byte> filled(size_t n, uint8_t value) { return std::vector<std::byte>(n, std::byte{value}); }

/// Files of this process cannot grow beyond a limit: a write is cut short and the next one fails, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

}  // namespace

TEST(GgufWriter, RewrittenFixtureIsIdentical) {
  const ef::Checkpoint source = ef::open_checkpoint(fixture("gguf/mixtral.gguf"));
  TempFolder folder;
  auto writer = ef::make_gguf_writer(folder / "out.gguf", source.gguf.metadata);
  copy_all(source.directory, *writer, 1000);
  const ef::Checkpoint copy = ef::open_checkpoint(folder / "out.gguf");
  expect_equal(source.directory, copy.directory);
  // The same header in another order of keys: the same length, so data at the same offsets, byte by byte.
  const std::string original = slurp(fixture("gguf/mixtral.gguf")), written = slurp(folder / "out.gguf");
  ASSERT_EQ(written.size(), original.size());
  EXPECT_EQ(written.substr(2848), original.substr(2848));
  EXPECT_EQ(written.substr(0, 24 + 8 + 20 + 4 + 8 + 5),
            original.substr(0, 24 + 8 + 20 + 4 + 8 + 5));  // counts, general.architecture
  ASSERT_EQ(copy.gguf.metadata.values.size(), source.gguf.metadata.values.size());
  for (const auto& [key, value] : source.gguf.metadata.values) {
    const ef::GgufValue* other = copy.gguf.metadata.find(key);
    ASSERT_NE(other, nullptr) << key;
    EXPECT_EQ(value.type, other->type) << key;
    EXPECT_TRUE(value.value == other->value) << key;
  }
  EXPECT_EQ(files_in(folder.path()), (std::vector<std::string>{"out.gguf"}));
}

TEST(GgufWriter, EveryValueTypeBlockFormatsAndAlignment) {
  GgufBuilder b;
  b.alignment = 128;
  b.u32("general.alignment", 128)
      .raw("u8", 0, le(uint8_t(200)))
      .raw("i8", 1, le(int8_t(-100)))
      .raw("u16", 2, le(uint16_t(60000)));
  b.raw("i16", 3, le(int16_t(-30000)))
      .raw("i32", 5, le(int32_t(-5)))
      .raw("f32", 6, le(0.1f))
      .raw("bool", 7, "\x01")
      .raw("str", 8, le_string("x"));
  b.raw("u64", 10, le(~uint64_t(0))).raw("i64", 11, le(int64_t(-1) << 62)).raw("f64", 12, le(0.1));
  b.array("a_u8", 0, 2, "\x01\xff")
      .array("a_i8", 1, 2, "\x01\xff")
      .array("a_u16", 2, 1, le(uint16_t(65535)))
      .array("a_i16", 3, 1, le(int16_t(-7)));
  b.array("a_u32", 4, 1, le(~uint32_t(0)))
      .array("a_i32", 5, 1, le(int32_t(-1)))
      .array("a_u64", 10, 1, le(uint64_t(1) << 62));
  b.array("a_i64", 11, 1, le(int64_t(-1))).array("a_f32", 6, 2, le(1.5f) + le(0.1f)).array("a_f64", 12, 1, le(0.1));
  b.array("a_bool", 7, 2, std::string("\0\1", 2)).array("a_str", 8, 2, le_string("a") + le_string(""));
  b.tensor("q", {64, 2}, kTensorQ8_0, std::string(4 * 34, 'q'))
      .f32("f", {3})
      .tensor("h", {5}, kTensorF16, std::string(10, 'h'));
  // std::map order of keys, so that the writer's file is this file. It has no architecture.
  std::sort(b.entries.begin(), b.entries.end(), [](const std::string& x, const std::string& y) {
    auto key = [](const std::string& s) { return s.substr(8, size_t(static_cast<unsigned char>(s[0]))); };
    return key(x) < key(y);
  });
  std::string expected = b.build();
  expected.resize((expected.size() + 127) / 128 * 128, '\0');
  TensorDirectory directory;
  const ef::GgufHeader header = ef::read_gguf_header(memory(expected), directory);
  TempFolder folder;
  copy_all(directory, *ef::make_gguf_writer(folder / "out.gguf", header.metadata), 7);
  EXPECT_EQ(slurp(folder / "out.gguf"), expected);
}

TEST(GgufWriter, SplitKeysAreLeftOut) {
  GgufBuilder b = small_gguf();
  b.raw("split.no", kMetaU16, le(uint16_t(0)))
      .raw("split.count", kMetaU16, le(uint16_t(3)))
      .raw("split.tensors.count", kMetaI32, le(int32_t(9)));
  const std::string bytes = b.build();
  TensorDirectory directory, copy;
  const ef::GgufHeader header = ef::read_gguf_header(memory(bytes), directory);
  TempFolder folder;
  copy_all(directory, *ef::make_gguf_writer(folder / "out.gguf", header.metadata), 100);
  const ef::GgufHeader written = ef::read_gguf(folder / "out.gguf", copy);
  EXPECT_EQ(written.metadata.values.size(), 2u);
  expect_equal(directory, copy);
}

TEST(GgufWriter, RefusesWhatTheFormatLacks) {
  TempFolder folder;
  auto writer = ef::make_gguf_writer(folder / "out.gguf", {});
  EXPECT_TRUE(
      mentions(model_error([&] { writer->declare("t", Format::kF8E4M3, {4}); }), {"out.gguf", "tensor t", "F8_E4M3"}));
  EXPECT_TRUE(mentions(model_error([&] { writer->declare("t", Format::kF32, {0}); }), {"tensor t", "[0]"}));
  EXPECT_TRUE(mentions(model_error([&] {
                         writer->declare("t", Format::kQ8_0, {2, 33});
                       }),
                       {"tensor t", "whole Q8_0 blocks"}));
  EXPECT_TRUE(mentions(model_error([&] {
                         writer->declare("t", Format::kF32, {1, 1, 1, 1, 1});
                       }),
                       {"tensor t", "4 dimensions"}));
  EXPECT_TRUE(mentions(model_error([&] { writer->declare(std::string(64, 'n'), Format::kF32, {1}); }), {"64 bytes"}));
  writer.reset();
  EXPECT_TRUE(files_in(folder.path()).empty());
}

TEST(SafetensorsWriter, RewrittenFixtureIsIdentical) {
  const ef::Checkpoint source = ef::open_checkpoint(fixture("hf/mixtral"));
  TempFolder folder;
  copy_all(source.directory, *ef::make_safetensors_writer(folder / "out"), 999);
  EXPECT_EQ(files_in(folder / "out"), (std::vector<std::string>{"model.safetensors"}));
  TensorDirectory copy;
  ef::read_safetensors_folder(folder / "out", copy);
  expect_equal(source.directory, copy);
  // The fixture was written by the reference implementation in this order too: the whole file is the same.
  EXPECT_EQ(slurp(folder / "out" / "model.safetensors"), slurp(fixture("hf/mixtral/model.safetensors")));
}

TEST(SafetensorsWriter, MixedDtypesStayAligned) {
  const ef::Checkpoint source = ef::open_checkpoint(fixture("hf/gpt_oss-mxfp4-clamp"));
  TempFolder folder;
  auto writer = ef::make_safetensors_writer(folder.path());
  writer->declare("bytes", Format::kU8, {3});
  writer->declare("empty", Format::kF32, {0, 4});
  writer->declare("wide", Format::kF32, {2});
  writer->declare("half", Format::kBF16, {3});
  writer->write(filled(3, 1));
  writer->write(filled(8, 2));
  writer->write(filled(6, 3));
  writer->finish();
  TensorDirectory copy;
  const auto metadata =
      ef::read_safetensors_header(std::make_shared<ef::FileSource>(folder / "model.safetensors"), copy);
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(copy.at("wide").offset % 8, 0u);
  EXPECT_EQ(copy.at("half").offset % 2, 0u);
  EXPECT_EQ(copy.read(copy.at("bytes")), filled(3, 1));
  EXPECT_EQ(copy.read(copy.at("wide")), filled(8, 2));
  EXPECT_EQ(copy.read(copy.at("half")), filled(6, 3));
  EXPECT_EQ(copy.find("empty")->shape, (std::vector<int64_t>{0, 4}));

  copy_all(source.directory, *ef::make_safetensors_writer(folder / "mx"), 4096);
  TensorDirectory mx;
  ef::read_safetensors_folder(folder / "mx", mx);
  expect_equal(source.directory, mx);
}

TEST(SafetensorsWriter, Shards) {
  const ef::Checkpoint source = ef::open_checkpoint(fixture("hf/mixtral"));
  TempFolder folder;
  copy_all(source.directory, *ef::make_safetensors_writer(folder.path(), 300000), 4096);
  EXPECT_EQ(files_in(folder.path()),
            (std::vector<std::string>{"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                      "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                                      "model.safetensors.index.json"}));
  TensorDirectory copy;
  ef::read_safetensors_folder(folder.path(), copy);
  EXPECT_EQ(copy.file_count(), 4);
  expect_equal(source.directory, copy);
  std::vector<uint64_t> data(4);
  for (const ef::TensorInfo& t : copy.tensors()) data[size_t(t.file)] += t.bytes;
  for (uint64_t bytes : data) EXPECT_LE(bytes, 300000u);
  const auto index = nlohmann::json::parse(slurp(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), source.directory.total_bytes());
  EXPECT_EQ(index.at("weight_map").size(), 96u);
}

TEST(SafetensorsWriter, RefusesAFolderWithTheOtherKind) {
  TempFolder folder;
  folder.write("model.safetensors", "old");
  auto writer = ef::make_safetensors_writer(folder.path(), 16);
  writer->declare("a", Format::kF32, {4});
  writer->declare("b", Format::kF32, {4});
  EXPECT_THROW(writer->write(filled(16, 1)), ef::ConfigError);
  writer.reset();
  EXPECT_EQ(files_in(folder.path()), (std::vector<std::string>{"model.safetensors"}));
  EXPECT_EQ(slurp(folder / "model.safetensors"), "old");
}

TEST(SafetensorsWriter, RefusesWhatTheFormatLacks) {
  TempFolder folder;
  auto writer = ef::make_safetensors_writer(folder.path());
  EXPECT_TRUE(mentions(model_error([&] { writer->declare("t", Format::kQ4K, {256}); }), {"tensor t", "Q4_K"}));
  EXPECT_TRUE(mentions(model_error([&] { writer->declare("a\xff", Format::kF32, {1}); }),
                       {folder.path().string(), "a\\xff", "UTF-8"}));
}

class AnyWriter : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<ef::CheckpointWriter> make() {
    if (GetParam()) return ef::make_gguf_writer(folder_ / "out.gguf", {});
    return ef::make_safetensors_writer(folder_.path());
  }
  TempFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Formats, AnyWriter, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Gguf" : "Safetensors"; });

TEST_P(AnyWriter, WrongAmountsOfBytes) {
  auto writer = make();
  writer->declare("a", Format::kF32, {4});
  writer->declare("b", Format::kF32, {2});
  EXPECT_TRUE(mentions(model_error([&] { writer->declare("a", Format::kF32, {4}); }), {"tensor a", "once"}));
  writer->write(filled(10, 1));
  EXPECT_TRUE(
      mentions(model_error([&] { writer->declare("c", Format::kF32, {4}); }), {"tensor c", "after the first write"}));
  EXPECT_TRUE(mentions(model_error([&] { writer->write(filled(7, 1)); }), {"tensor a", "16 bytes", "17"}));
  EXPECT_TRUE(mentions(model_error([&] { writer->finish(); }), {"tensor a", "16 bytes", "10 written"}));
  writer->write(filled(6, 1));
  EXPECT_TRUE(mentions(model_error([&] { writer->finish(); }), {"tensor b", "8 bytes", "0 written"}));
  writer->write(filled(8, 1));
  EXPECT_TRUE(mentions(model_error([&] { writer->write(filled(1, 1)); }), {"2 tensors", "1 bytes more"}));
  writer->finish();
  EXPECT_EQ(files_in(folder_.path()).size(), 1u);
}

TEST_P(AnyWriter, NothingAppearsBeforeFinish) {
  auto writer = make();
  writer->declare("a", Format::kF32, {4});
  writer->write(filled(16, 1));
  const auto names = files_in(folder_.path());
  ASSERT_EQ(names.size(), 1u);
  EXPECT_NE(names[0].find(".partial"), std::string::npos);
  writer.reset();
  EXPECT_TRUE(files_in(folder_.path()).empty());
}

TEST_P(AnyWriter, AnOlderFileSurvivesUntilFinish) {
  const std::string name = GetParam() ? "out.gguf" : "model.safetensors";
  folder_.write(name, "old");
  auto writer = make();
  writer->declare("a", Format::kF32, {4});
  writer->write(filled(16, 1));
  EXPECT_EQ(slurp(folder_ / name), "old");
  writer->finish();
  EXPECT_GT(fs::file_size(folder_ / name), 16u);
}

TEST_P(AnyWriter, FailedWriteNamesTheFileAndCleansUp) {
  auto writer = make();
  writer->declare("a", Format::kF32, {1 << 20});
  std::string message;
  {
    FileSizeLimit limit(1 << 20);
    try {
      for (int i = 0; i < 4; ++i) writer->write(filled(1 << 20, 1));
    } catch (const ef::DeviceError& error) {
      message = error.what();
    }
    EXPECT_THROW(writer->finish(), ef::Error);
  }
  EXPECT_TRUE(mentions(message, {GetParam() ? "out.gguf" : "model.safetensors", "writing failed", "File too large"}));
  EXPECT_TRUE(files_in(folder_.path()).empty());
}

TEST_P(AnyWriter, AFullDiskIsSeenBeforeTheFirstByte) {
  auto writer = make();
  writer->declare("a", Format::kI8, {int64_t(1) << 61});
  try {
    writer->write(filled(16, 1));
    FAIL();
  } catch (const ef::DeviceError& error) {
    EXPECT_TRUE(mentions(error.what(), {folder_.path().string(), "2305843009213693952 bytes of free space"}));
  }
  EXPECT_TRUE(files_in(folder_.path()).empty());
}

TEST_P(AnyWriter, AFolderThatCannotBeWritten) {
  const std::string file = folder_.write("file", "x").string();
  EXPECT_THROW(
      {
        auto writer = GetParam() ? ef::make_gguf_writer(fs::path(file) / "out.gguf", {})
                                 : ef::make_safetensors_writer(fs::path(file) / "out");
        writer->declare("a", Format::kF32, {4});
        writer->write(filled(16, 1));
      },
      ef::DeviceError);
}
