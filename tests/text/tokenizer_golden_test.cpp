// Full vocabularies of Qwen3, DeepSeek-V3, gpt-oss, Llama-2 and of the bundled demo, on about 2,500 strings. Expected
// ids and decoded texts come from Hugging Face's tokenizers 0.21.4 and 0.22.2, which agree with each other and with the
// npm package @huggingface/tokenizers.
#include <gtest/gtest.h>

#include "tests/text/tokenizer_goldens.h"

namespace ef {
namespace {

class FullVocabularies : public ::testing::TestWithParam<const char*> {};

TEST_P(FullVocabularies, IdsAndDecodedTexts) {
  const std::string name = GetParam();
  const goldens::FullVocabulary vocabulary(name);
  const auto report = goldens::json_of("report.json")["tokenizers"][name];
  ASSERT_EQ(vocabulary.merges.size(), report["merges"].get<size_t>());
  ASSERT_EQ(vocabulary.merges_fnv(), report["merges_fnv"].get<std::string>())
      << "the archive does not expand to the original merges";
  const Tokenizer tokenizer = load_tokenizer_json_text(vocabulary.to_json(), nullptr, name);
  const auto strings = goldens::json_of("strings.json").get<std::vector<std::string>>();
  const auto lines = goldens::lines_of(name + "/ids.txt");
  ASSERT_EQ(strings.size(), lines.size());
  ASSERT_GE(strings.size(), 2000u);
  int wrong = 0;
  for (size_t i = 0; i < strings.size() && wrong < 20; ++i) {
    const auto ids = tokenizer.encode(strings[i], {.add_special = false});
    const std::string line = goldens::fnv(tokenizer.decode(ids, false)) + " " + goldens::ids_line(ids);
    if (line == lines[i]) continue;
    ++wrong;
    ADD_FAILURE() << nlohmann::json(strings[i]).dump() << "\n expected " << lines[i] << "\n found    " << line
                  << "\n decoded  " << nlohmann::json(tokenizer.decode(ids, false)).dump();
  }
  // What a stream prints piece by piece is what decode gives at once, wherever the bytes are whole.
  for (size_t i = 0; i < strings.size(); i += 3) {
    const auto ids = tokenizer.encode(strings[i], {.add_special = false});
    std::string streamed;
    for (size_t k = 0; k < ids.size(); ++k) streamed += tokenizer.token_to_bytes(ids[k], k == 0);
    ASSERT_EQ(utf8_lossy(streamed), tokenizer.decode(ids, false)) << strings[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, FullVocabularies,
                         ::testing::Values("qwen3", "deepseek_v3", "gptoss", "llama2", "demo"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ef
