// Packed models: the goldens hold, an expert is one aligned read, and nothing that is damaged is ever used.
#include "expertflow/engine/pack.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"
#include "expertflow/engine/generate.h"
#include "expertflow/engine/text_model.h"
#include "expertflow/weights/packed.h"
#include "tests/engine/model_rig.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

PackOptions to(const fs::path& model, const fs::path& out) {
  PackOptions o;
  o.model = model;
  o.out = out;
  return o;
}

template <class E, class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

std::vector<TokenId> greedy(Engine& engine, const std::vector<TokenId>& prompt) {
  GenerateRequest r;
  r.prompt = prompt;
  r.max_tokens = 24;
  r.sampler.temperature = 0;
  return Generator(engine, nullptr).generate(r).tokens;
}

void flip_byte(const fs::path& file, uint64_t offset) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(long(offset));
  const char byte = char(f.get() ^ 1);
  f.seekp(long(offset));
  f.put(byte);
}

// Writes the index anew, after a change, with a front that fits.
template <class Change>
void change_index(const fs::path& file, Change change) {
  std::string bytes;
  {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  uint64_t at = 0, size = 0;
  std::memcpy(&at, bytes.data() + 24, 8);
  std::memcpy(&size, bytes.data() + 32, 8);
  nlohmann::json index = nlohmann::json::parse(bytes.substr(at, size));
  change(index);
  const std::string text = index.dump();
  bytes.resize(at);
  bytes += text;
  bytes.replace(0, kPackedBlock, packed_front(bytes.size(), at, text));
  std::ofstream(file, std::ios::binary) << bytes;
}

class PackedMixtral : public ::testing::Test {
 protected:
  PackedMixtral() { pack(to(gguf_fixture("mixtral"), file)); }
  std::string open_error() const {
    return message_of<ModelError>([&] { open_model(file); });
  }
  TempFolder folder;
  const fs::path file = folder.path / "m.efpack";
};

// Every layout of experts, from both kinds of checkpoint, by every way to read.
TEST(Pack, TheGoldensHold) {
  const TempFolder folder;
  std::vector<std::pair<std::string, fs::path>> models;
  for (const char* name : {"mixtral", "qwen3_moe-fp8", "gpt_oss", "gpt_oss-mxfp4-clamp", "deepseek_v3",
                           "qwen3_moe-mixed-layers", "granitemoe"})
    models.emplace_back(name, hf_fixture(name));
  for (const char* name : {"mixtral", "gpt_oss-mxfp4-clamp", "qwen2_moe"})
    models.emplace_back(name, gguf_fixture(name));
  for (const auto& [name, model] : models) {
    const fs::path file = folder.path / (model.filename().string() + ".efpack");
    const PackReport report = pack(to(model, file));
    EXPECT_EQ(report.bytes_out, fs::file_size(file));
    const GoldenCase golden = goldens(name)[1];
    // With 8-bit activations the source says what is right, in the goldens' own arithmetic they do.
    const std::vector<TokenId> fast = greedy(*engine_of(open_model(model), small_engine("50%")), golden.ids);
    for (const char* budget : {"100%", "50%", "min"})
      for (const char* io : {"auto", "pread"}) {
        EngineOptions o = small_engine(budget);
        o.io = io;
        o.direct_io = std::string(io) == "pread" ? "off" : "auto";
        EXPECT_EQ(greedy(*engine_of(open_model(file), o), golden.ids), fast) << file << " " << budget << " " << io;
        o.activations = "f32";
        EXPECT_EQ(greedy(*engine_of(open_model(file), o), golden.ids), golden.greedy)
            << file << " " << budget << " " << io;
      }
    EngineOptions resident = small_engine();
    resident.all_resident = true;
    resident.activations = "f32";
    EXPECT_EQ(greedy(*engine_of(open_model(file), resident), golden.ids), golden.greedy) << file;
  }
}

// Files of either layout run on kernels that want either: the bytes of a slot do not depend on the file's.
TEST(Pack, LayoutsAreChangedAfterTheRead) {
  const TempFolder folder;
  const fs::path demo = fs::path(EF_SOURCE_DIR) / "models/demo/demo-Q5_K_M.gguf";
  const auto source = open_model(demo);
  for (const char* layout : {"rows", "tiles16"}) {
    PackOptions o = to(demo, folder.path / layout);
    o.layout = layout;
    pack(o);
    const auto packed = open_model(o.out);
    EXPECT_EQ(packed->checkpoint.packed->layouts(), layout);
    for (const MatrixLayout wanted : {MatrixLayout::kRows, MatrixLayout::kTiles16}) {
      source->store->choose_layouts([&](Format) { return wanted; });
      packed->store->choose_layouts([&](Format) { return wanted; });
      DiskReader reader(*packed->store, {});
      for (const ExpertKey key : {ExpertKey{0, 0}, ExpertKey{11, 31}, ExpertKey{5, 7}}) {
        std::vector<std::byte> plain(source->store->slot_bytes(key.layer)), staging;
        source->store->fill(key, plain, staging);
        PageBuffer slot(packed->store->slot_bytes(key.layer));
        reader.fill(key, slot.bytes(), 0);
        for (const ExpertPart& p : source->store->layout(key.layer).parts)
          EXPECT_EQ(std::memcmp(plain.data() + p.offset, slot.data() + p.offset, p.bytes), 0)
              << layout << " layer " << key.layer << " part " << int(p.role);
      }
    }
  }
  PackOptions o = to(demo, folder.path / "none");
  o.layout = "tiles99";
  EXPECT_NE(message_of<ConfigError>([&] { pack(o); }).find("tiles99"), std::string::npos);
}

TEST_F(PackedMixtral, AnExpertIsOneAlignedBlock) {
  const auto files = open_model(file);
  ASSERT_TRUE(files->checkpoint.packed);
  EXPECT_EQ(files->checkpoint.packed->source_name, "mixtral.gguf");
  uint64_t end = 0;
  for (const LayerExperts& layer : files->store->layers())
    for (ExpertId e = 0; e < 8; ++e) {
      const ExpertImage& image = *files->store->image({layer.layer, e});
      EXPECT_EQ(image.offset % 4096, 0u);
      EXPECT_EQ(image.bytes % 4096, 0u);
      EXPECT_GE(image.offset, end);
      EXPECT_EQ(files->store->file_bytes({layer.layer, e}), image.bytes);
      end = image.offset + image.bytes;
    }
  EXPECT_EQ(DiskReader::staging_bytes(*files->store, 4), 0u);
}

TEST_F(PackedMixtral, SideFilesOfAFolderAreThere) {
  const fs::path from = hf_fixture("mixtral"), out = folder.path / "hf.efpack";
  pack(to(from, out));
  const Checkpoint c = open_checkpoint(out);
  EXPECT_EQ(c.kind, Checkpoint::Kind::kHuggingFace);
  EXPECT_EQ(c.config, open_checkpoint(from).config);
  EXPECT_EQ(c.side_files()->read("config.json"), folder_files(from)->read("config.json"));
  EXPECT_FALSE(c.side_files()->read("no such file"));
}

// A bit that was wrong once, on its way: read again, counted, and the bytes are right.
TEST_F(PackedMixtral, AWrongChecksumIsReadOnceMore) {
  const auto files = open_model(file);
  const ExpertImage& image = *files->store->image({1, 5});
  int reads = 0;
  DiskReaderOptions o;
  o.faults.result = [&](uint64_t offset, std::span<std::byte> came, int64_t result) {
    if (offset == image.offset && reads++ == 0) came[100] ^= std::byte{4};
    return result;
  };
  DiskReader reader(*files->store, o);
  PageBuffer slot(files->store->slot_bytes(1));
  reader.fill({1, 5}, slot.bytes(), 0);
  EXPECT_EQ(reads, 2);
  EXPECT_EQ(reader.rereads(), 1u);
  EXPECT_EQ(image_checksum(slot.bytes().first(image.bytes)), image.checksum);
}

// A bit that is wrong in the file: the request fails by name, others are answered, the bytes are not used.
TEST_F(PackedMixtral, AWrongChecksumTwiceFailsTheRequest) {
  uint64_t offset = 0;
  {
    const auto files = open_model(file);
    offset = files->store->image({1, 5})->offset;
  }
  flip_byte(file, offset + 1000);
  const auto files = open_model(file);
  DiskReader reader(*files->store, {});
  PageBuffer slot(files->store->slot_bytes(1));
  const std::string message = message_of<ModelError>([&] { reader.fill({1, 5}, slot.bytes(), 0); });
  for (const char* part : {"m.efpack", "layer 1, expert 5", "checksum", "found"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(reader.rereads(), 1u);
  reader.fill({1, 4}, slot.bytes(), 0);
  // Through the engine: prompts that meet the expert fail, and leave nothing behind.
  const auto engine = engine_of(open_model(file), small_engine("50%"));
  int failed = 0, right = 0;
  for (const GoldenCase& golden : goldens("mixtral")) try {
      EXPECT_EQ(greedy(*engine, golden.ids), golden.greedy);
      ++right;
    } catch (const ModelError& e) {
      EXPECT_NE(std::string(e.what()).find("layer 1, expert 5"), std::string::npos) << e.what();
      ++failed;
    }
  EXPECT_GT(failed, 0);
}

TEST_F(PackedMixtral, DamagedAndForeignFilesAreRefused) {
  const uint64_t size = fs::file_size(file);
  const fs::path good = folder.path / "good";
  fs::copy_file(file, good);
  const auto restore = [&] { fs::copy_file(good, file, fs::copy_options::overwrite_existing); };

  fs::resize_file(file, size - 1);
  EXPECT_NE(open_error().find(fmt::format("expected {} bytes, found {}: it is cut short", size, size - 1)),
            std::string::npos)
      << open_error();
  fs::resize_file(file, 100);
  EXPECT_NE(open_error().find("found a file of 100"), std::string::npos) << open_error();
  restore();
  flip_byte(file, 16);  // a size in the front
  EXPECT_NE(open_error().find("first block"), std::string::npos) << open_error();
  restore();
  flip_byte(file, size - 5);  // in the index
  EXPECT_NE(open_error().find("index: expected checksum"), std::string::npos) << open_error();
  restore();
  flip_byte(file, 8);  // version 1 becomes 0
  EXPECT_NE(open_error().find("packed format 1, found 0"), std::string::npos) << open_error();
  restore();
  change_index(file, [](auto& index) { index["layers"][0]["parts"][0]["layout"] = "tiles99"; });
  EXPECT_NE(open_error().find("found \"tiles99\": pack the model again"), std::string::npos) << open_error();

  const auto refused = [&](auto change, const char* part) {
    restore();
    change_index(file, change);
    EXPECT_NE(open_error().find(part), std::string::npos) << part << " in: " << open_error();
  };
  refused([](auto& i) { i["layers"][1]["offset"] = i["layers"][1]["offset"].template get<uint64_t>() + 64; },
          "whole blocks");
  refused([](auto& i) { i["layers"][2]["offset"] = 1ull << 40; }, "layers[2]");
  refused([](auto& i) { i["layers"].erase(1); }, "experts of layer 1");
  refused([](auto& i) { i["layers"][1]["checksums"].erase(0); }, "expected 8 experts, found 7");
  refused([](auto& i) { i["layers"][1]["checksums"][3] = "xyz"; }, "checksums[3]");
  refused([](auto& i) { i["layers"][1]["parts"][0]["rows"] = 1ull << 39; }, "parts[0]");
  refused([](auto& i) { i["layers"][1]["parts"][0]["role"] = "wing"; }, "wing");
  refused([](auto& i) { i["layers"][1]["parts"][0]["format"] = "Q17"; }, "Q17");
  refused([](auto& i) { i["tensors"][0]["offset"] = 1ull << 39; }, "tensors[0]");
  refused([](auto& i) { i["tensors"][0]["shape"][0] = 1ull << 62; }, "m.efpack");
  refused([](auto& i) { i.erase("files"); }, "files");
  refused([](auto& i) { i["files"].clear(); }, "metadata.gguf");
  restore();
  EXPECT_EQ(open_error(), "");
}

TEST_F(PackedMixtral, AFileThatChangesWhileItRunsFailsTheRequest) {
  const timespec before[2] = {{1'000'000, 0}, {1'000'000, 0}}, after[2] = {{2'000'000, 0}, {2'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), before, 0), 0);
  const auto engine = engine_of(open_model(file), small_engine("min"));
  const GoldenCase golden = goldens("mixtral")[1];
  EXPECT_EQ(greedy(*engine, golden.ids), golden.greedy);
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), after, 0), 0);
  EXPECT_NE(message_of<DeviceError>([&] { greedy(*engine, golden.ids); }).find("changed since it was opened"),
            std::string::npos);
}

TEST_F(PackedMixtral, TargetsThatMustNotBeWritten) {
  const auto refused = [](const PackOptions& o) { return message_of<ConfigError>([&] { pack(o); }); };
  const uint64_t size = fs::file_size(file);
  EXPECT_NE(refused(to(gguf_fixture("mixtral"), file)).find("--force"), std::string::npos);
  EXPECT_NE(refused(to(file, folder.path / "again")).find("packed"), std::string::npos);
  EXPECT_NE(refused(to(gguf_fixture("mixtral"), folder.path)).find("found a folder"), std::string::npos);
  const fs::path copy = folder.path / "copy.gguf";
  fs::copy_file(gguf_fixture("mixtral"), copy);
  const uint64_t copy_size = fs::file_size(copy);
  PackOptions onto_itself = to(copy, copy);
  onto_itself.force = true;
  EXPECT_NE(refused(onto_itself).find("found the same"), std::string::npos);
  EXPECT_EQ(fs::file_size(copy), copy_size);
  const fs::path unfinished = folder.path / "x.partial";
  fs::copy_file(copy, unfinished);
  EXPECT_NE(refused(to(unfinished, folder.path / "x")).find("found the same"), std::string::npos);
  std::ofstream(file) << "something";
  PackOptions force = to(gguf_fixture("mixtral"), file);
  force.force = true;
  pack(force);
  EXPECT_EQ(fs::file_size(file), size);
  EXPECT_THROW(pack(to(gguf_fixture("mixtral"), folder.path / "no" / "folder")), ConfigError);
  EXPECT_FALSE(fs::exists(folder.path / "m.efpack.partial"));
}

TEST(Pack, AnInputThatFailsHalfwayLeavesNothing) {
  const TempFolder folder;
  const fs::path model = folder.path / "m.gguf";
  fs::copy_file(gguf_fixture("mixtral"), model);
  fs::resize_file(model, fs::file_size(model) - 100);
  EXPECT_THROW(pack(to(model, folder.path / "out")), ModelError);
  EXPECT_FALSE(fs::exists(folder.path / "out"));
  EXPECT_FALSE(fs::exists(folder.path / "out.partial"));
}

}  // namespace
}  // namespace ef::testing
