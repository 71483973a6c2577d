// Broken and hostile GGUF files. Names: the cases of the list of known failures of such engines (A1 ... A20).
#include "tests/weights/file_bytes.h"

using namespace ef_test;

TEST(GgufHostile, A1_ZeroDimension) {
  // llama.cpp#25596: [4, 0].
  const std::string message = gguf_error(GgufBuilder().tensor("blk.0.attn_q.weight", {4, 0}, kTensorF32, "").build());
  EXPECT_TRUE(mentions(message, {"hostile.gguf", "blk.0.attn_q.weight", "at least one element", "size 0"}));
}

TEST(GgufHostile, A3_DimensionOverflow) {
  // llama.cpp#18674: one dimension patched to 2^42 + 1.
  auto patched = [](std::vector<uint64_t> ne) {
    return gguf_error(
        GgufBuilder().f32("first", {8}).tensor("wide", std::move(ne), kTensorF32, std::string(64, 'x')).build());
  };
  EXPECT_TRUE(
      mentions(patched({4, (1ull << 42) + 1}), {"hostile.gguf", "wide", "70368744177680 bytes", "found a file of"}));
  // The product wraps to a small number in 64 bits.
  EXPECT_TRUE(mentions(patched({(1ull << 42) + 1, 1ull << 42}),
                       {"hostile.gguf", "wide", "2^63", "[4398046511104, 4398046511105]"}));
  EXPECT_TRUE(mentions(patched({1ull << 32, 1ull << 32}), {"wide", "2^63"}));
  EXPECT_TRUE(mentions(patched({1ull << 63}), {"wide", "below 2^63", "9223372036854775808"}));
  EXPECT_TRUE(mentions(patched({~0ull, 2}), {"wide", "18446744073709551615"}));
  // Elements fit, bytes do not: 2^62 floats are 2^64 bytes.
  EXPECT_TRUE(mentions(patched({1ull << 62}), {"wide", "2^64 bytes"}));
}

TEST(GgufHostile, A3_OffsetMismatch) {
  // A tensor shrunk or grown in place no longer meets its neighbour.
  auto built = [](uint64_t rows) {
    return gguf_error(
        GgufBuilder().tensor("grown", {8, rows}, kTensorF32, std::string(4 * 32, 'x')).f32("after", {8}).build());
  };
  EXPECT_TRUE(
      mentions(built(3), {"hostile.gguf", "after", "expected offset 96", "behind tensor grown", "found 128", "hole"}));
  EXPECT_TRUE(mentions(
      built(5), {"hostile.gguf", "after", "expected offset 160", "behind tensor grown", "found 128", "overlap"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().f32("first", {8}, 32).build() + std::string(32, 'x')),
                       {"first", "expected offset 0", "found 32"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().f32("odd", {8}, 4).build() + std::string(32, 'x')),
                       {"odd", "multiple of 32", "found 4"}));
}

TEST(GgufHostile, A3_PartOfABlock) {
  const std::string message =
      gguf_error(GgufBuilder().tensor("q", {48, 2}, kTensorQ8_0, std::string(102, 'x')).build());
  EXPECT_TRUE(mentions(message, {"hostile.gguf", "tensor q", "whole Q8_0 blocks (32", "[2, 48]"}));
}

TEST(GgufHostile, A4_Counts) {
  // llama.cpp#15711, #14595: a count just under SIZE_MAX / sizeof, which overflows once it is multiplied.
  for (uint64_t count :
       {~uint64_t(0), ~uint64_t(0) / 2, ~uint64_t(0) / 200, uint64_t(1) << 62, uint64_t(1) << 40, uint64_t(100)}) {
    GgufBuilder b = small_gguf();
    b.tensor_count = count;
    EXPECT_TRUE(mentions(gguf_error(b.build()), {"hostile.gguf", "tensor", std::to_string(count)})) << count;
    b = small_gguf();
    b.entry_count = count;
    EXPECT_TRUE(mentions(gguf_error(b.build()), {"hostile.gguf", "metadata entries", std::to_string(count)})) << count;
  }
}

TEST(GgufHostile, A4_SummedSizes) {
  // Each size is representable, their sum is not.
  const std::string message = gguf_error(GgufBuilder()
                                             .tensor("a", {1ull << 62, 1}, kTensorI8, std::string(32, 'x'), 0)
                                             .tensor("b", {1ull << 62, 1}, kTensorI8, std::string(32, 'x'), 1ull << 62)
                                             .tensor("c", {1ull << 62, 1}, kTensorI8, std::string(32, 'x'), 1ull << 63)
                                             .build());
  EXPECT_TRUE(mentions(message, {"hostile.gguf", "tensor a", "4611686018427387904 bytes", "found a file of"}));
  // An offset near 2^64 must not wrap around when the size is added.
  EXPECT_TRUE(
      mentions(gguf_error(GgufBuilder().f32("far", {8}, ~0ull - 31).build()), {"tensor far", "18446744073709551584"}));
}

TEST(GgufHostile, A6_EmptyKey) {
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().u32("", 1).build()),
                       {"hostile.gguf", "metadata entry 1 of 1", "key", "length 0"}));
}

TEST(GgufHostile, A7_Alignment) {
  auto with = [](uint32_t type, const std::string& payload) {
    return gguf_error(GgufBuilder().raw("general.alignment", type, payload).f32("t", {8}).build());
  };
  EXPECT_TRUE(
      mentions(with(kMetaU32, le(uint32_t(0))), {"hostile.gguf", "general.alignment", "power of two", "found 0"}));
  EXPECT_TRUE(mentions(with(kMetaU32, le(uint32_t(24))), {"general.alignment", "power of two", "found 24"}));
  EXPECT_TRUE(mentions(with(kMetaI32, le(int32_t(-32))), {"general.alignment", "u32", "i32"}));
  EXPECT_TRUE(mentions(with(kMetaString, le_string("32")), {"general.alignment", "u32", "string"}));
  EXPECT_TRUE(mentions(with(kMetaU64, le(uint64_t(32))), {"general.alignment", "u32", "u64"}));
  // The largest power of two puts the data past the end of the file.
  EXPECT_TRUE(mentions(with(kMetaU32, le(uint32_t(1) << 31)), {"tensor t", "begins at 2147483648", "found a file of"}));
}

TEST(GgufHostile, A9_Lengths) {
  const uint64_t huge = 1ull << 40;
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().raw("k", kMetaString, le(huge) + "abc").build()),
                       {"hostile.gguf", "(k)", "1099511627776 bytes", "found 3"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().array("k", kMetaString, huge, le_string("abc")).build()),
                       {"hostile.gguf", "(k)", "1099511627776"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().array("k", kMetaU8, huge, "abc").build()), {"(k)", "1099511627776"}));
  // count * 8 wraps to 0 and to 8.
  EXPECT_TRUE(
      mentions(gguf_error(GgufBuilder().array("k", kMetaU64, 1ull << 61, "").build()), {"(k)", "2305843009213693952"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().array("k", kMetaU64, (1ull << 61) + 1, le(uint64_t(1))).build()),
                       {"(k)", "2305843009213693953"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().raw("k", kMetaString, le(~0ull)).build()),
                       {"(k)", "18446744073709551615 bytes"}));
  // Strings of an array are bounded one by one too.
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().array("k", kMetaString, 2, le_string("abc") + le(huge)).build()),
                       {"(k)", "1099511627776 bytes"}));
  // Key and tensor names.
  GgufBuilder b;
  b.entries.push_back(le(huge) + "name");
  EXPECT_TRUE(mentions(gguf_error(b.build() + std::string(32, 'x')), {"metadata entry 1 of 1", "1099511627776 bytes"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().f32(std::string(2000, 'n'), {8}).build()),
                       {"tensor entry 1 of 1", "1024", "2000"}));
}

TEST(GgufHostile, A10_CutAnywhere) {
  const std::string whole = small_gguf().build();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string message = gguf_error(whole.substr(0, length));
    ASSERT_TRUE(mentions(message, {"hostile.gguf", "expected", "found"})) << length;
  }
  // In the data: the tensor, its bytes, the size of the file. The last tensor holds 16 bytes.
  const std::string cut = whole.substr(0, whole.size() - 1);
  EXPECT_TRUE(mentions(gguf_error(cut),
                       {"output_norm.weight", "16 bytes", fmt::format("file of {} bytes", cut.size()), "cut short"}));
  const std::string header_only = whole.substr(0, whole.size() - 64 - 96 - 16);  // three tensors, padded to 32
  EXPECT_TRUE(mentions(gguf_error(header_only),
                       {"token_embd.weight", "48 bytes", fmt::format("file of {} bytes", header_only.size())}));
}

TEST(GgufHostile, A10_CutFixture) {
  const std::string whole = slurp(fs::path(EF_FIXTURES) / "gguf" / "mixtral.gguf");
  ASSERT_EQ(whole.size(), 1034784u);
  for (size_t length = 0; length < whole.size(); length += 9973) {
    ASSERT_TRUE(mentions(gguf_error(whole.substr(0, length)), {"hostile.gguf", "expected", "found"})) << length;
  }
  // blk.2.attn_v.weight: [32, 64] in BF16 at 1027584 of the data section, which begins at 2848.
  EXPECT_TRUE(mentions(gguf_error(whole.substr(0, 2848 + 1027584 + 100)),
                       {"blk.2.attn_v.weight", "4096 bytes at offset 1027584", "1030532 bytes"}));
}

TEST(GgufHostile, A17_UnknownTensorType) {
  // 16 is IQ2_XXS, which this engine does not read; 4 was removed from ggml; 4711 never existed.
  for (auto [type, name] : {std::pair(16u, "IQ2_XXS"), {4u, ""}, {4711u, ""}, {0xffffffffu, ""}}) {
    const std::string message =
        gguf_error(GgufBuilder().tensor("blk.3.ffn_up.weight", {256}, type, std::string(4096, 'x')).build());
    EXPECT_TRUE(mentions(message, {"hostile.gguf", "blk.3.ffn_up.weight", fmt::format("type number {}", type), name}));
  }
}

TEST(GgufHostile, Magic) {
  auto with = [](const std::string& magic, uint32_t version) {
    GgufBuilder b = small_gguf();
    b.magic = magic, b.version = version;
    return gguf_error(b.build());
  };
  EXPECT_TRUE(mentions(with("GGUF", 1), {"hostile.gguf", "version 2 or 3", "version 1"}));
  EXPECT_TRUE(mentions(with("GGUF", 4), {"version 2 or 3", "version 4"}));
  EXPECT_TRUE(mentions(with("GGUF", 0), {"version 2 or 3", "version 0"}));
  EXPECT_TRUE(mentions(with("GGUF", 0x03000000), {"little-endian", "big-endian", "version 3"}));
  EXPECT_TRUE(mentions(with("GGUF", 0x02000000), {"little-endian", "big-endian", "version 2"}));
  EXPECT_TRUE(mentions(with("FUGG", 3), {"magic GGUF", "FUGG", "big-endian"}));
  EXPECT_TRUE(mentions(with("tjgg", 3), {"magic GGUF", "tjgg", "GGJT"}));
  EXPECT_TRUE(mentions(with("\x1b[2J", 3), {"magic GGUF", "\\x1b[2J"}));
  EXPECT_TRUE(mentions(gguf_error(""), {"hostile.gguf", "cut short", "0 bytes"}));
}

TEST(GgufHostile, Values) {
  EXPECT_TRUE(
      mentions(gguf_error(GgufBuilder().raw("k", 13, le(uint64_t(0))).build()), {"(k)", "value type", "found 13"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().array("k", 77, 1, le(uint64_t(0))).build()),
                       {"(k)", "element type", "found 77"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().array("k", kMetaArray, 1, le(kMetaU8) + le(uint64_t(0))).build()),
                       {"(k)", "array of arrays"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().raw("k", kMetaBool, "\x02").build()), {"(k)", "bool", "found 2"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().array("k", kMetaBool, 2, std::string("\x01\xff", 2)).build()),
                       {"(k)", "bool", "found 255"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().array("k", kMetaU64, 1, le(~0ull)).build()), {"(k)", "2^63"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().u32("k", 1).u32("k", 2).build()), {"(k)", "twice"}));
}

TEST(GgufHostile, Names) {
  EXPECT_TRUE(
      mentions(gguf_error(GgufBuilder().f32("a", {8}).f32("a", {8}).build()), {"hostile.gguf", "tensor a", "once"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().f32("", {8}).build()), {"tensor entry 1 of 1", "length 0"}));
  EXPECT_TRUE(mentions(gguf_error(GgufBuilder().f32("five", {1, 1, 1, 1, 1}).build()),
                       {"tensor five", "4 dimensions", "found 5"}));
  // Escape sequences of a terminal do not get through.
  const std::string message = gguf_error(GgufBuilder().tensor("\x1b]0;owned\x07", {0}, kTensorF32, "").build());
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_TRUE(mentions(message, {"\\x1b]0;owned\\x07"}));
}
