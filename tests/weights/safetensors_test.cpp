// safetensors files, good and hostile. Names: the cases of the list of known failures of such engines (B1 ... B12).
#include "expertflow/weights/safetensors.h"

#include <cmath>

#include "tests/weights/file_bytes.h"

using namespace ef_test;
using ef::Format;
using ef::TensorDirectory;

namespace {

fs::path fixture(const std::string& name) { return fs::path(EF_FIXTURES) / name; }

std::string error_of(const std::string& bytes) {
  TensorDirectory directory;
  return model_error([&] { ef::read_safetensors_header(memory(bytes, "hostile.safetensors"), directory); });
}

std::string header_error(const std::string& header, size_t data_bytes = 0) {
  return error_of(safetensors_bytes(header, std::string(data_bytes, 'x')));
}

/// {"NAME": {...}} with the given fields.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                  uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

}  // namespace

TEST(Safetensors, ReadsFixture) {
  // Values read off the file with an independent script.
  TensorDirectory directory;
  ef::read_safetensors_folder(fixture("hf/mixtral"), directory);
  ASSERT_EQ(directory.tensors().size(), 96u);
  const ef::TensorInfo& w1 = directory.at("model.layers.0.block_sparse_moe.experts.0.w1.weight");
  EXPECT_EQ(w1.format, Format::kBF16);
  EXPECT_EQ(w1.shape, (std::vector<int64_t>{96, 64}));
  EXPECT_EQ(w1.offset, 8u + 11008u + 65536u);
  EXPECT_EQ(w1.bytes, 12288u);
  // BF16 3f74, 3f61, 3fa0, 3f90.
  const std::vector<float> norm = directory.read_f32(directory.at("model.layers.0.input_layernorm.weight"));
  EXPECT_EQ(std::vector<float>(norm.begin(), norm.begin() + 4),
            (std::vector<float>{0.953125f, 0.87890625f, 1.25f, 1.125f}));
  EXPECT_EQ(directory.total_bytes() + 8 + 11008, fs::file_size(fixture("hf/mixtral/model.safetensors")));
}

TEST(Safetensors, ReadsShards) {
  TensorDirectory directory;
  ef::read_safetensors_folder(fixture("hf/mixtral-tied-sharded"), directory);
  EXPECT_EQ(directory.file_count(), 7);
  EXPECT_EQ(directory.total_bytes(), 575872u);  // metadata.total_size of its index
  EXPECT_EQ(
      fs::path(directory.file_name(directory.at("model.layers.0.block_sparse_moe.experts.0.w1.weight"))).filename(),
      "model-00002-of-00007.safetensors");
  EXPECT_EQ(directory.at("model.embed_tokens.weight").format, Format::kF16);
}

TEST(Safetensors, EveryFixtureOpens) {
  int folders = 0;
  for (const auto& item : fs::directory_iterator(fixture("hf"))) {
    TensorDirectory directory, golden;
    ef::read_safetensors_folder(item.path(), directory);
    EXPECT_GT(directory.tensors().size(), 20u) << item.path();
    ef::read_safetensors_header(std::make_shared<ef::FileSource>(item.path() / "golden.safetensors"), golden);
    EXPECT_NE(golden.find("logits.0"), nullptr) << item.path();
    ++folders;
  }
  EXPECT_EQ(folders, 23);
}

TEST(Safetensors, B1_HeaderLength) {
  auto with_length = [](uint64_t length) { return error_of(le(length) + "{}" + std::string(100, ' ')); };
  EXPECT_TRUE(mentions(with_length(0), {"hostile.safetensors", "header length", "found 0"}));
  EXPECT_TRUE(mentions(with_length(103), {"hostile.safetensors", "header of 103 bytes", "file of 110 bytes"}));
  EXPECT_TRUE(mentions(with_length(99'000'000), {"99000000", "file of 110 bytes"}));
  EXPECT_TRUE(mentions(with_length(100'000'001), {"at most 100000000", "100000001"}));
  for (uint64_t length : {~uint64_t(0), ~uint64_t(0) - 7, uint64_t(1) << 63, uint64_t(1) << 32}) {
    EXPECT_TRUE(mentions(with_length(length), {"hostile.safetensors", "at most 100000000", std::to_string(length)}));
  }
  for (size_t size = 0; size < 8; ++size) {
    EXPECT_TRUE(
        mentions(error_of(std::string(size, '\0')), {"at least 8 bytes", fmt::format("file of {} bytes", size)}));
  }
  EXPECT_TRUE(
      mentions(error_of("version https://git-lfs.github.com/spec/v1\n"), {"hostile.safetensors", "Git LFS pointer"}));
  EXPECT_TRUE(mentions(error_of(small_gguf().build()), {"hostile.safetensors", "a GGUF file"}));
}

TEST(Safetensors, B3_Overlap) {
  const std::string message =
      header_error("{" + entry("a", "F32", "[4]", 0, 16) + "," + entry("b", "F32", "[4]", 12, 28) + "}", 28);
  EXPECT_TRUE(mentions(
      message, {"hostile.safetensors", "tensor b", "offset 16", "behind tensor a", "found it at 12", "overlap"}));
  const std::string same =
      header_error("{" + entry("a", "F32", "[4]", 0, 16) + "," + entry("b", "F32", "[4]", 0, 16) + "}", 16);
  EXPECT_TRUE(mentions(same, {"hostile.safetensors", "offset 16", "found it at 0", "overlap"}));
}

TEST(Safetensors, B3_Holes) {
  const std::string between =
      header_error("{" + entry("a", "F32", "[4]", 0, 16) + "," + entry("b", "F32", "[4]", 20, 36) + "}", 36);
  EXPECT_TRUE(mentions(between, {"hostile.safetensors", "tensor b", "offset 16", "found it at 20", "hole"}));
  EXPECT_TRUE(mentions(header_error("{" + entry("a", "F32", "[4]", 8, 24) + "}", 24),
                       {"tensor a", "offset 0", "found it at 8", "hole"}));
  EXPECT_TRUE(mentions(header_error("{" + entry("a", "F32", "[4]", 0, 16) + "}", 20),
                       {"hostile.safetensors", "16 bytes of data", "found 20"}));
  EXPECT_TRUE(mentions(header_error("{}", 4), {"0 bytes of data", "found 4"}));
}

TEST(Safetensors, B3_DuplicateNames) {
  const std::string message =
      header_error("{" + entry("a", "F32", "[4]", 0, 16) + "," + entry("a", "F32", "[4]", 16, 32) + "}", 32);
  EXPECT_TRUE(mentions(message, {"hostile.safetensors", "tensor a", "twice"}));
  EXPECT_TRUE(mentions(header_error(R"({"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}})", 4),
                       {"tensor a", "dtype", "twice"}));
  EXPECT_TRUE(mentions(header_error(R"({"__metadata__":{"k":"1","k":"2"}})"), {"__metadata__", "k twice"}));
}

TEST(Safetensors, B3_UnorderedHeaderLoads) {
  // Entries and fields in any order, padding before and behind, escapes, empty tensors, scalars.
  std::string data;
  for (int i = 0; i < 6; ++i) data += le(float(i));
  const std::string header =
      R"({ "z":{"data_offsets":[16,24],"shape":[2],"dtype":"F32"}, "empty":{"dtype":"F32","shape":[0,3],"data_offsets":[16,16]},
    "__metadata__":{"format":"pt"}, "\u0061":{"shape":[2,2],"dtype":"F32","data_offsets":[0,16]} }      )";
  const std::string bytes = safetensors_bytes(header, data);
  TensorDirectory directory;
  const auto metadata = ef::read_safetensors_header(memory(bytes), directory);
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(directory.read_f32(directory.at("a")), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(directory.read_f32(directory.at("z")), (std::vector<float>{4, 5}));
  ASSERT_NE(directory.find("empty"), nullptr);
  EXPECT_TRUE(directory.read(*directory.find("empty")).empty());
  // The format allows it, a weight must not be empty.
  EXPECT_TRUE(
      mentions(model_error([&] { directory.at("empty"); }), {"tensor empty", "at least one element", "[0, 3]"}));
  const std::string scalar = safetensors_bytes("{" + entry("s", "F32", "[]", 0, 4) + "}", le(2.5f));
  TensorDirectory other;
  ef::read_safetensors_header(memory(scalar), other);
  EXPECT_EQ(other.read_f32(other.at("s")), (std::vector<float>{2.5f}));
}

TEST(Safetensors, SizesAndShapes) {
  auto one = [](const std::string& dtype, const std::string& shape, uint64_t begin, uint64_t end) {
    return header_error("{" + entry("t", dtype, shape, begin, end) + "}", 64);
  };
  EXPECT_TRUE(mentions(one("F32", "[4]", 0, 15),
                       {"hostile.safetensors", "tensor t", "16 bytes for F32 of shape [4]", "[0, 15]"}));
  EXPECT_TRUE(mentions(one("F32", "[4294967296,4294967296]", 0, 0), {"tensor t", "2^63", "[4294967296, 4294967296]"}));
  EXPECT_TRUE(mentions(one("F32", "[4611686018427387904]", 0, 0), {"tensor t", "2^64 bytes"}));
  EXPECT_TRUE(mentions(one("F32", "[9223372036854775808]", 0, 0), {"tensor t", "2^63", "9223372036854775808"}));
  EXPECT_TRUE(mentions(one("F32", "[0,4611686018427387904,4]", 0, 0), {"tensor t", "2^63"}));
  EXPECT_TRUE(mentions(one("F32", "[-4]", 0, 16), {"tensor t", "shape", "at least 0", "-4"}));
  EXPECT_TRUE(mentions(one("F32", "[4.0]", 0, 16), {"tensor t", "shape", "4.0"}));
  EXPECT_TRUE(mentions(one("F32", "[1e1]", 0, 40), {"tensor t", "shape", "1e1"}));
  EXPECT_TRUE(mentions(one("F32", "[18446744073709551616]", 0, 16), {"tensor t", "shape"}));
  EXPECT_TRUE(mentions(one("F32", "[[4]]", 0, 16), {"tensor t", "shape", "an array"}));
  EXPECT_TRUE(mentions(one("F32", "4", 0, 16), {"tensor t", "shape", "expected an array", "found 4"}));
  EXPECT_TRUE(mentions(one("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]", 0, 16), {"tensor t", "shape", "at most 16"}));
  EXPECT_TRUE(mentions(one("F32", "[4]", 16, 0), {"tensor t", "in order", "[16, 0]"}));
  EXPECT_TRUE(mentions(one("F32", "[4]", ~uint64_t(0) - 15, ~uint64_t(0)), {"tensor t"}));
  EXPECT_TRUE(mentions(one("I8", "[9223372036854775807]", 1, uint64_t(1) << 63),
                       {"tensor t", "9223372036854775807 bytes", "cut short"}));
  EXPECT_TRUE(mentions(one("F4", "[4]", 0, 2), {"tensor t", "dtype", "F4"}));
  EXPECT_TRUE(mentions(one("f32", "[4]", 0, 16), {"tensor t", "dtype"}));
}

TEST(Safetensors, Fields) {
  EXPECT_TRUE(mentions(header_error(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4),
                       {"tensor t", "expected dtype, shape and data_offsets"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4),
                       {"tensor t", "expected dtype, shape and data_offsets"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":{"dtype":"F32","shape":[1]}})", 4),
                       {"tensor t", "expected dtype, shape and data_offsets"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4),
                       {"tensor t", "two data_offsets", "found 1"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4),
                       {"tensor t", "data_offsets", "at most 2"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]}})", 4),
                       {"tensor t", "strides"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})", 4),
                       {"tensor t dtype", "a string", "32"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":{"dtype":{},"shape":[1],"data_offsets":[0,4]}})", 4),
                       {"tensor t dtype", "a string", "an object"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":[1,2]})"), {"tensor t", "an object", "an array"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":null})"), {"tensor t", "an object", "null"}));
  EXPECT_TRUE(mentions(header_error(R"({"__metadata__":{"k":1}})"), {"__metadata__", "a string", "1"}));
  EXPECT_TRUE(mentions(header_error(R"({"__metadata__":{"k":{}}})"), {"__metadata__", "a string", "an object"}));
  EXPECT_TRUE(mentions(header_error(R"({"t":{"dtype":"F32",)"), {"hostile.safetensors", "JSON", "byte"}));
  EXPECT_TRUE(mentions(header_error("{}x"), {"JSON", "at byte 11"}));
  EXPECT_TRUE(mentions(header_error("[]"), {"a brace", "found ["}));
  EXPECT_TRUE(mentions(header_error("{\"\xff\":{}}"), {"JSON"}));
  EXPECT_TRUE(mentions(header_error("{\"t\":" + std::string(100000, '[')), {"tensor t", "an object"}));
}

TEST(Safetensors, A10_CutAnywhere) {
  const std::string header =
      "{" + entry("first", "F32", "[4]", 0, 16) + "," + entry("last", "BF16", "[2,3]", 16, 28) + "}";
  const std::string whole = safetensors_bytes(header, std::string(28, 'x'));
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_TRUE(mentions(error_of(whole.substr(0, length)), {"hostile.safetensors", "expected", "found"})) << length;
  }
  const size_t cut = whole.size() - 1;
  EXPECT_TRUE(
      mentions(error_of(whole.substr(0, cut)), {"tensor last", "12 bytes", fmt::format("a file of {} bytes", cut + 1),
                                                fmt::format("found a file of {} bytes", cut)}));
}

TEST(Safetensors, B7_Fp8BlockScalesAreOrdinaryTensors) {
  TensorDirectory directory;
  ef::read_safetensors_folder(fixture("hf/qwen3_moe-fp8"), directory);
  int matrices = 0;
  for (const ef::TensorInfo& weight : directory.tensors()) {
    if (weight.format != Format::kF8E4M3) continue;
    const ef::TensorInfo& scales = directory.at(weight.name + "_scale_inv");
    EXPECT_EQ(scales.format, Format::kF32);
    // Edge blocks are cropped: sizes are rounded up.
    EXPECT_EQ(scales.shape, (std::vector<int64_t>{(weight.rows() + 127) / 128, (weight.cols() + 127) / 128}))
        << weight.name;
    ++matrices;
  }
  EXPECT_EQ(matrices, 2 * (4 + 3 * 4));
  // Read off the file with an independent script.
  const std::string name = "model.layers.0.mlp.experts.0.down_proj.weight";
  EXPECT_EQ(directory.read_f32(directory.at(name + "_scale_inv")),
            (std::vector<float>{0.0009983608033508062f, 0.0009242466767318547f, 0.0009068080107681453f,
                                0.0006975446594879031f}));
  const std::vector<std::byte> raw = directory.read(directory.at(name));
  EXPECT_EQ(text_of(raw).substr(0, 8), "\xd4\x64\x50\xe8\x75\x64\x52\x72");
}

TEST(Safetensors, B7_MatrixOf576By7168) {
  const uint64_t weight = 576 * 7168, scales = 5 * 56 * 4;
  const std::string header = "{" + entry("w", "F8_E4M3", "[576,7168]", 0, weight) + "," +
                             entry("w_scale_inv", "F32", "[5,56]", weight, weight + scales) + "}";
  std::string data(weight, '\x38');
  for (int i = 0; i < 5 * 56; ++i) data += le(float(i));
  const std::string bytes = safetensors_bytes(header, data);
  TensorDirectory directory;
  ef::read_safetensors_header(memory(bytes), directory);
  EXPECT_EQ(directory.at("w").bytes, weight);
  EXPECT_EQ(directory.read_f32(directory.at("w_scale_inv"))[279], 279.0f);
  EXPECT_EQ(directory.read_f32(directory.at("w"))[weight - 1], 1.0f);  // 0x38 is 1 in e4m3
}

TEST(Safetensors, B8_ExponentBytesAreNeverNumbers) {
  // gpt-oss's scales are exponent bytes with dtype U8, other checkpoints say F8_E8M0: both stay bytes.
  TensorDirectory directory;
  ef::read_safetensors_folder(fixture("hf/gpt_oss-mxfp4-clamp"), directory);
  const ef::TensorInfo& scales = directory.at("model.layers.0.mlp.experts.gate_up_proj_scales");
  EXPECT_EQ(scales.format, Format::kU8);
  EXPECT_EQ(scales.shape, (std::vector<int64_t>{4, 128, 2}));
  EXPECT_EQ(text_of(directory.read(scales)).substr(0, 8), "\x7e\x7f\x7e\x7c\x7e\x7e\x80\x7e");
  EXPECT_EQ(directory.at("model.layers.0.mlp.experts.gate_up_proj_blocks").shape,
            (std::vector<int64_t>{4, 128, 2, 16}));
  EXPECT_TRUE(mentions(model_error([&] { directory.read_f32(scales); }), {"gate_up_proj_scales", "arithmetic", "U8"}));

  const std::string bytes = safetensors_bytes("{" + entry("s", "F8_E8M0", "[4]", 0, 4) + "}", "\x7e\x7f\x80\x81");
  TensorDirectory other;
  ef::read_safetensors_header(memory(bytes), other);
  EXPECT_EQ(other.at("s").format, Format::kU8);
  EXPECT_EQ(text_of(other.read(other.at("s"))), "\x7e\x7f\x80\x81");
  EXPECT_TRUE(mentions(model_error([&] { other.read_f32(other.at("s")); }), {"tensor s", "arithmetic"}));
}

namespace {

/// Two shards a.safetensors (tensor x) and b.safetensors (tensor y), and an index with the given map.
void write_shards(const TempFolder& folder, const std::string& weight_map) {
  folder.write("a.safetensors", safetensors_bytes("{" + entry("x", "F32", "[4]", 0, 16) + "}", std::string(16, 'x')));
  folder.write("b.safetensors", safetensors_bytes("{" + entry("y", "F32", "[4]", 0, 16) + "}", std::string(16, 'y')));
  folder.write("model.safetensors.index.json", R"({"metadata":{"total_size":32},"weight_map":)" + weight_map + "}");
}

std::string folder_error(const TempFolder& folder) {
  TensorDirectory directory;
  return model_error([&] { ef::read_safetensors_folder(folder.path(), directory); });
}

}  // namespace

TEST(SafetensorsIndex, B12_MissingShard) {
  TempFolder folder;
  write_shards(folder, R"({"x":"a.safetensors","y":"b.safetensors","z":"c.safetensors"})");
  EXPECT_TRUE(mentions(folder_error(folder), {(folder / "c.safetensors").string(), "tensor z",
                                              "model.safetensors.index.json", "no such file"}));
}

TEST(SafetensorsIndex, B12_TensorInTheWrongShard) {
  TempFolder folder;
  write_shards(folder, R"({"x":"b.safetensors","y":"a.safetensors"})");
  EXPECT_TRUE(mentions(folder_error(folder), {(folder / "b.safetensors").string(), "tensor x",
                                              "found it in " + (folder / "a.safetensors").string()}));
  write_shards(folder, R"({"x":"a.safetensors","y":"b.safetensors","z":"b.safetensors"})");
  EXPECT_TRUE(mentions(folder_error(folder), {(folder / "b.safetensors").string(), "tensor z", "found it in none"}));
}

TEST(SafetensorsIndex, B12_TensorInTwoShards) {
  TempFolder folder;
  write_shards(folder, R"({"x":"a.safetensors","y":"b.safetensors"})");
  folder.write("b.safetensors", safetensors_bytes("{" + entry("x", "F32", "[4]", 0, 16) + "}", std::string(16, 'y')));
  EXPECT_TRUE(mentions(folder_error(folder), {"tensor x", "once", "a.safetensors", "b.safetensors"}));
}

TEST(SafetensorsIndex, HostileNames) {
  TempFolder folder;
  for (const char* name :
       {"../a.safetensors", "/etc/passwd", "..", ".", "", "a/b.safetensors", "a\\u0000.safetensors"}) {
    write_shards(folder, fmt::format(R"({{"x":"{}"}})", name));
    EXPECT_TRUE(mentions(folder_error(folder), {"model.safetensors.index.json", "tensor x", "within the folder"}))
        << name;
  }
}

TEST(SafetensorsIndex, Malformed) {
  TempFolder folder;
  for (const char* map : {"[]", "{}", "null", "7"}) {
    write_shards(folder, map);
    EXPECT_TRUE(mentions(folder_error(folder), {"model.safetensors.index.json", "weight_map", "an object"})) << map;
  }
  write_shards(folder, R"({"x":7})");
  EXPECT_TRUE(mentions(folder_error(folder), {"weight_map", "tensor x", "a file name", "number"}));
  folder.write("model.safetensors.index.json", "{\n \"weight_map\": {\n  \"x\" \"a\"}}");
  EXPECT_TRUE(mentions(folder_error(folder), {"model.safetensors.index.json", "JSON", "line 3"}));
  folder.write("model.safetensors.index.json", std::string(100000, '['));
  EXPECT_TRUE(mentions(folder_error(folder), {"model.safetensors.index.json", "nested at most"}));
  folder.write("model.safetensors.index.json", "{}");
  EXPECT_TRUE(mentions(folder_error(folder), {"weight_map", "found nothing"}));
}
