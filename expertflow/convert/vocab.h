// Tokenizers and chat templates in the other file kind. What is written is loaded again and must cut sample texts as
// the source's tokenizer does.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "expertflow/convert/plan.h"
#include "expertflow/text/tokenizer.h"

namespace ef {

/// tokenizer.ggml.*, tokenizer.chat_template. A model without tokenizer gets tokenizer.ggml.model "none". pre:
/// overrides the name of the pre-tokenizer. ModelError: a tokenizer that GGUF cannot carry.
void write_gguf_vocabulary(const SourceModel& source, const std::string& pre, GgufMetadata& metadata,
                           std::vector<std::string>& notes);

/// tokenizer.json and tokenizer_config.json as (name, text); nothing for a model without tokenizer. ModelError: one
/// that cannot be rebuilt.
void write_hf_vocabulary(const SourceModel& source, const std::string& pre,
                         std::vector<std::pair<std::string, std::string>>& files, std::vector<std::string>& notes);

/// ModelError naming a text that the two cut differently.
void require_same_tokens(const Tokenizer& source, const Tokenizer& result);

}  // namespace ef
