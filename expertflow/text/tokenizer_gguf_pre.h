// tokenizer.ggml.pre: how the text is cut before BPE.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ef {

struct GgufPre {
  std::vector<std::string> expressions;  ///< one after another, matches isolated (Oniguruma syntax)
  bool ignore_merges = false;
  bool add_bos = false;  ///< where the file does not say
};

/// Null for an unknown name. An empty name is "default", as old files have none.
const GgufPre* find_gguf_pre(std::string_view name);

}  // namespace ef
