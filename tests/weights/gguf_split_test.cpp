// Split GGUF files: cases A14 and A15.
#include "expertflow/weights/checkpoint.h"
#include "tests/weights/file_bytes.h"

using namespace ef_test;
using ef::TensorDirectory;

namespace {

/// Shard `no` (from 0) of `count`, as llama-gguf-split writes them: u16 split.no and split.count, i32
/// split.tensors.count, architecture and tokenizer in the first shard only.
GgufBuilder shard(int no, int count, int total = 3) {
  GgufBuilder b;
  if (no == 0) b.str("general.architecture", "qwen3moe");
  b.raw("split.no", kMetaU16, le(uint16_t(no))).raw("split.count", kMetaU16, le(uint16_t(count)));
  b.raw("split.tensors.count", kMetaI32, le(int32_t(total)));
  return b;
}

std::string name_of(int number, int count) { return fmt::format("model-{:05d}-of-{:05d}.gguf", number, count); }

/// Three shards with the tensors a; b and c; none.
void write_shards(const TempFolder& folder, int total = 3) {
  folder.write(name_of(1, 3), shard(0, 3, total).f32("a", {8}).build());
  folder.write(name_of(2, 3), shard(1, 3, total).f32("b", {16}).f32("c", {8}).build());
  folder.write(name_of(3, 3), shard(2, 3, total).build());
}

std::string split_error(const fs::path& path) {
  TensorDirectory directory;
  return model_error([&] { ef::read_gguf(path, directory); });
}

}  // namespace

TEST(GgufSplit, A14_AnyShardOpensTheModel) {
  TempFolder folder;
  write_shards(folder);
  for (int number = 1; number <= 3; ++number) {
    TensorDirectory directory;
    const ef::GgufHeader header = ef::read_gguf(folder / name_of(number, 3), directory);
    EXPECT_EQ(header.metadata.str("general.architecture"), "qwen3moe");
    EXPECT_EQ(header.metadata.file, (folder / name_of(1, 3)).string());
    ASSERT_EQ(directory.tensors().size(), 3u);
    EXPECT_EQ(directory.tensors()[2].name, "c");
    EXPECT_EQ(directory.file_name(directory.at("b")), (folder / name_of(2, 3)).string());
    EXPECT_EQ(directory.read_f32(directory.at("c"))[7], 7.0f);
  }
}

TEST(GgufSplit, A14_TheDirectoryOpensTheModel) {
  TempFolder folder;
  write_shards(folder);
  folder.write("mmproj-model-f16.gguf", small_gguf().build());
  const ef::Checkpoint checkpoint = ef::open_checkpoint(folder.path());
  EXPECT_EQ(checkpoint.kind, ef::Checkpoint::Kind::kGguf);
  EXPECT_EQ(checkpoint.path, folder / name_of(1, 3));
  EXPECT_EQ(checkpoint.directory.tensors().size(), 3u);
  folder.write("other.gguf", small_gguf().build());
  EXPECT_TRUE(mentions(model_error([&] { ef::open_checkpoint(folder.path()); }),
                       {folder.path().string(), "one GGUF model", "found 2", "other.gguf"}));
}

TEST(GgufSplit, A14_NumbersCountFromZero) {
  TempFolder folder;
  write_shards(folder);
  folder.write(name_of(2, 3), shard(2, 3).f32("b", {16}).f32("c", {8}).build());
  EXPECT_TRUE(mentions(split_error(folder / name_of(1, 3)), {name_of(2, 3), "split.no", "expected 1", "found 2"}));
  folder.write(name_of(2, 3), shard(1, 4).f32("b", {16}).f32("c", {8}).build());
  EXPECT_TRUE(mentions(split_error(folder / name_of(1, 3)), {name_of(2, 3), "split.count", "expected 3", "found 4"}));
}

TEST(GgufSplit, A14_TensorsCount) {
  TempFolder folder;
  write_shards(folder, 4);
  EXPECT_TRUE(
      mentions(split_error(folder / name_of(1, 3)), {name_of(1, 3), "split.tensors.count", "expected 4", "found 3"}));
}

TEST(GgufSplit, A14_DuplicateAcrossShards) {
  TempFolder folder;
  write_shards(folder);
  folder.write(name_of(3, 3), shard(2, 3).f32("a", {8}).build());
  EXPECT_TRUE(mentions(split_error(folder / name_of(1, 3)), {name_of(3, 3), "tensor a", "once", name_of(1, 3)}));
}

TEST(GgufSplit, A15_MissingShardIsNamed) {
  TempFolder folder;
  write_shards(folder);
  fs::remove(folder / name_of(2, 3));
  EXPECT_TRUE(mentions(split_error(folder / name_of(3, 3)),
                       {(folder / name_of(2, 3)).string(), "shard 2 of 3", "no such file"}));
  EXPECT_TRUE(mentions(model_error([&] { ef::open_checkpoint(folder.path()); }), {name_of(2, 3), "shard 2 of 3"}));
}

TEST(GgufSplit, A15_ShardUnderAnotherName) {
  TempFolder folder;
  write_shards(folder);
  fs::rename(folder / name_of(1, 3), folder / "model.gguf");
  EXPECT_TRUE(
      mentions(split_error(folder / "model.gguf"), {"model.gguf", "NAME-00001-of-00003.gguf", "one shard of 3"}));
}

TEST(GgufSplit, A15_JoinedWithCat) {
  TempFolder folder;
  auto padded = [](std::string bytes) {
    bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
    return bytes;
  };
  const std::string first = padded(shard(0, 3).f32("a", {8}).build()),
                    second = padded(shard(1, 3).f32("b", {16}).build());
  folder.write("joined.gguf", first + second);
  EXPECT_TRUE(mentions(split_error(folder / "joined.gguf"),
                       {"joined.gguf", "cat", fmt::format("offset {}", first.size()), "llama-gguf-split --merge"}));
  // A first shard without tensors.
  const std::string empty = padded(shard(0, 3).build());
  folder.write("joined.gguf", empty + second);
  EXPECT_TRUE(
      mentions(split_error(folder / "joined.gguf"), {"joined.gguf", "cat", fmt::format("offset {}", empty.size())}));
}

TEST(GgufSplit, A15_ByteWiseParts) {
  TempFolder folder;
  const std::string whole = small_gguf().build();
  for (const char* name : {"big.gguf.part1of2", "big.gguf-split-a"}) {
    folder.write(name, whole.substr(0, 200));
    for (const fs::path& path : {folder / name, folder.path()}) {
      const std::string message = model_error([&] { ef::open_checkpoint(path); });
      EXPECT_TRUE(mentions(message, {name, "parts of big.gguf", "join all of them", "cat big.gguf"})) << path;
    }
    EXPECT_TRUE(mentions(split_error(folder / name), {"join all of them"}));
    fs::remove(folder / name);
  }
}

TEST(GgufSplit, MergedFileKeepsWorking) {
  // Merging sets split.count to 0; the file may still carry a shard's name.
  TempFolder folder;
  GgufBuilder b = small_gguf();
  b.raw("split.count", kMetaU16, le(uint16_t(0)));
  folder.write(name_of(1, 3), b.build());
  TensorDirectory directory;
  ef::read_gguf(folder / name_of(1, 3), directory);
  EXPECT_EQ(directory.tensors().size(), 3u);
}
