// What open_checkpoint takes, and what it says about everything else.
#include "expertflow/weights/checkpoint.h"

#include "expertflow/weights/load.h"
#include "tests/weights/file_bytes.h"

using namespace ef_test;
using ef::Checkpoint;

namespace {

fs::path fixture(const std::string& name) { return fs::path(EF_FIXTURES) / name; }

std::string open_error(const fs::path& path) {
  return model_error([&] { ef::open_checkpoint(path); });
}

std::string tiny_safetensors() {
  return safetensors_bytes(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, 'x'));
}

/// Reads fail from a given offset on.
class BrokenSource final : public ef::ByteSource {
 public:
  explicit BrokenSource(std::shared_ptr<const ef::ByteSource> inner) : inner_(std::move(inner)) {}
  const std::string& name() const override { return inner_->name(); }
  uint64_t size() const override { return inner_->size(); }
  void read(uint64_t, std::span<std::byte>) const override { ef::fail<ef::DeviceError>("{}: EIO", name()); }

 private:
  std::shared_ptr<const ef::ByteSource> inner_;
};

}  // namespace

TEST(Checkpoint, HuggingFaceFolder) {
  for (const char* name : {"hf/mixtral-tied-sharded", "hf/mixtral-tied-sharded/config.json",
                           "hf/mixtral-tied-sharded/model.safetensors.index.json",
                           "hf/mixtral-tied-sharded/model-00003-of-00007.safetensors", "hf/mixtral-tied-sharded/"}) {
    const Checkpoint checkpoint = ef::open_checkpoint(fixture(name));
    EXPECT_EQ(checkpoint.kind, Checkpoint::Kind::kHuggingFace) << name;
    EXPECT_EQ(checkpoint.config.at("model_type"), "mixtral") << name;
    EXPECT_TRUE(checkpoint.generation_config.is_object()) << name;
    EXPECT_EQ(checkpoint.directory.file_count(), 7) << name;
  }
}

TEST(Checkpoint, GgufFile) {
  const Checkpoint checkpoint = ef::open_checkpoint(fixture("gguf/granitemoe.gguf"));
  EXPECT_EQ(checkpoint.kind, Checkpoint::Kind::kGguf);
  EXPECT_EQ(checkpoint.gguf.metadata.str("general.architecture"), "granitemoe");
  EXPECT_TRUE(checkpoint.config.is_null());
  // Stores of other programs name their files by hash: the content decides.
  TempFolder folder;
  folder.write("sha256-0123", small_gguf().build());
  EXPECT_EQ(ef::open_checkpoint(folder / "sha256-0123").kind, Checkpoint::Kind::kGguf);
}

TEST(Checkpoint, FolderWithBothTakesSafetensors) {
  TempFolder folder;
  folder.write("config.json", R"({"model_type":"mixtral"})");
  folder.write("model.safetensors", tiny_safetensors());
  folder.write("model.gguf", small_gguf().build());
  const Checkpoint checkpoint = ef::open_checkpoint(folder.path());
  EXPECT_EQ(checkpoint.kind, Checkpoint::Kind::kHuggingFace);
  EXPECT_TRUE(checkpoint.generation_config.is_null());
  fs::remove(folder / "model.safetensors");
  EXPECT_EQ(ef::open_checkpoint(folder.path()).kind, Checkpoint::Kind::kGguf);
}

TEST(Checkpoint, WhatIsNotOne) {
  TempFolder folder;
  EXPECT_TRUE(mentions(open_error(folder / "absent"), {"absent", "found"}));
  EXPECT_TRUE(mentions(open_error(folder.path()), {folder.path().string(), "config.json", "found nothing"}));
  folder.write("pytorch_model.bin", "x");
  EXPECT_TRUE(mentions(open_error(folder.path()), {"pytorch_model.bin", "safetensors", "pickled"}));
  EXPECT_TRUE(mentions(open_error(folder / "pytorch_model.bin"), {"GGUF or safetensors", "begins with x"}));
  folder.write("page.gguf", "<!DOCTYPE html>");
  EXPECT_TRUE(mentions(open_error(folder / "page.gguf"), {"page.gguf", "magic GGUF", "<!DO"}));
  folder.write("empty.gguf", "");
  EXPECT_TRUE(mentions(open_error(folder / "empty.gguf"), {"empty.gguf", "cut short", "0 bytes"}));
  folder.write("empty", "");
  EXPECT_TRUE(mentions(open_error(folder / "empty"), {"empty", "0 bytes"}));
  folder.write("model.safetensors", tiny_safetensors());
  EXPECT_TRUE(mentions(open_error(folder.path()), {"config.json beside"}));
}

TEST(Checkpoint, JsonErrorsNameFileAndPlace) {
  TempFolder folder;
  folder.write("model.safetensors", tiny_safetensors());
  folder.write("config.json", "{\n  \"hidden_size\": 64,\n  \"x\": }\n");
  EXPECT_TRUE(mentions(open_error(folder.path()), {(folder / "config.json").string(), "line 3, column 8"}));
  folder.write("config.json", "[1, 2]");
  EXPECT_TRUE(mentions(open_error(folder.path()), {"config.json", "a JSON object", "array"}));
  folder.write("config.json", "");
  EXPECT_TRUE(mentions(open_error(folder.path()), {"config.json", "JSON"}));
  folder.write("config.json", "{\"a\": 1e999}");
  EXPECT_TRUE(mentions(open_error(folder.path()), {"config.json", "JSON"}));
  folder.write("config.json", "{\"a\": " + std::string(200, '['));
  EXPECT_TRUE(mentions(open_error(folder.path()), {"config.json", "nested"}));
  folder.write("config.json", "{}");
  folder.write("generation_config.json", "{\"a\" 1}");
  EXPECT_TRUE(mentions(open_error(folder.path()), {"generation_config.json", "line 1"}));
}

TEST(TensorDirectory, A20_AbsentTensor) {
  const Checkpoint checkpoint = ef::open_checkpoint(fixture("gguf/mixtral.gguf"));
  const std::string message = model_error([&] { checkpoint.directory.at("blk.0.ffn_up.weight"); });
  EXPECT_TRUE(mentions(message, {"mixtral.gguf", "blk.0.ffn_up.weight", "33 tensors"}));
  EXPECT_EQ(checkpoint.directory.find("blk.0.ffn_up.weight"), nullptr);
}

TEST(TensorDirectory, A20_AllMissingNamesAreListedOnce) {
  const Checkpoint checkpoint = ef::open_checkpoint(fixture("gguf/mixtral.gguf"));
  const std::vector<std::string> names = {"output.weight", "nope.1", "token_embd.weight", "nope.2"};
  EXPECT_TRUE(mentions(model_error([&] { checkpoint.directory.require(names); }),
                       {"mixtral.gguf", "expected 4 tensors", "2 of them", "nope.1, nope.2"}));
  checkpoint.directory.require(std::vector<std::string>{"output.weight"});
}

TEST(TensorDirectory, ReadsRanges) {
  const Checkpoint checkpoint = ef::open_checkpoint(fixture("hf/mixtral"));
  const ef::TensorDirectory& directory = checkpoint.directory;
  const ef::TensorInfo& t = directory.at("model.embed_tokens.weight");
  const std::vector<std::byte> whole = directory.read(t);
  ASSERT_EQ(whole.size(), 32768u);
  std::vector<std::byte> part(100);
  directory.read(t, 32668, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 32668));
  EXPECT_TRUE(mentions(model_error([&] { directory.read(t, 32669, part); }),
                       {"model.embed_tokens.weight", "32768 bytes", "100 bytes at 32669"}));
  EXPECT_TRUE(mentions(model_error([&] { directory.read(t, ~uint64_t(0), part); }), {"model.embed_tokens.weight"}));
}

TEST(TensorDirectory, ReadFaultsNameTheTensor) {
  Checkpoint checkpoint = ef::open_checkpoint(fixture("hf/mixtral"));
  checkpoint.directory.wrap_files([](auto inner) { return std::make_shared<BrokenSource>(std::move(inner)); });
  try {
    checkpoint.directory.read(checkpoint.directory.at("lm_head.weight"));
    FAIL();
  } catch (const ef::DeviceError& error) {
    EXPECT_TRUE(mentions(error.what(), {"lm_head.weight", "model.safetensors", "EIO"}));
  }
}

TEST(TensorDirectory, FileCutAfterOpening) {
  TempFolder folder;
  const fs::path file = folder.write("m.gguf", small_gguf().build());
  const Checkpoint checkpoint = ef::open_checkpoint(file);
  fs::resize_file(file, fs::file_size(file) - 8);
  try {
    checkpoint.directory.read(checkpoint.directory.at("output_norm.weight"));
    FAIL();
  } catch (const ef::DeviceError& error) {
    EXPECT_TRUE(mentions(error.what(), {"output_norm.weight", "m.gguf", "short read"}));
  }
}

TEST(Load, AlignedBuffer) {
  for (uint64_t size : {1u, 63u, 64u, 1000u}) {
    ef::AlignedBuffer buffer(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.size(), size);
  }
  EXPECT_FALSE(ef::AlignedBuffer());
  EXPECT_THROW(ef::AlignedBuffer(uint64_t(1) << 62), ef::DeviceError);
}

TEST(Load, RowsInPieces) {
  const Checkpoint checkpoint = ef::open_checkpoint(fixture("gguf/mixtral.gguf"));
  const ef::TensorDirectory& directory = checkpoint.directory;
  const ef::TensorInfo& t = directory.at("blk.0.ffn_gate_exps.weight");  // 768 rows of 128 bytes
  const std::vector<std::byte> whole = directory.read(t);
  for (uint64_t most : {1u, 128u, 1000u, 98304u, 1u << 30}) {
    std::vector<std::byte> joined;
    int64_t next = 0;
    size_t largest = 0;
    ef::for_each_rows(directory, t, most, [&](int64_t first, int64_t rows, std::span<const std::byte> bytes) {
      EXPECT_EQ(first, next);
      EXPECT_EQ(first % 16, 0);
      EXPECT_EQ(bytes.size(), size_t(rows) * 128);
      next += rows;
      largest = std::max(largest, bytes.size());
      joined.insert(joined.end(), bytes.begin(), bytes.end());
    });
    EXPECT_EQ(joined, whole);
    EXPECT_LE(largest, std::max<uint64_t>(most, 16 * 128));  // at least a tile of rows
  }
  const ef::AlignedBuffer loaded = ef::load_tensor(directory, t);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), loaded.bytes().begin(), loaded.bytes().end()));
}
