// The text side of a checkpoint: its tokenizer and chat template, wherever the file kind keeps them.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "expertflow/text/chat.h"
#include "expertflow/text/tokenizer.h"
#include "expertflow/weights/checkpoint.h"

namespace ef {

/// tokenizer.ggml.* of a GGUF as plain data.
GgufVocab gguf_vocab(const GgufMetadata& metadata);

/// The checkpoint's tokenizer, ending generation at the union of what its files name; nothing if the checkpoint brings
/// none (GGUF's "none", a folder without tokenizer files). pre overrides tokenizer.ggml.pre. ModelError if it is
/// malformed.
std::optional<Tokenizer> load_tokenizer(const Checkpoint& checkpoint, const std::string& pre = "");

/// The chat templates that the checkpoint brings: chat_template.jinja, tokenizer_config.json, or the GGUF's keys; may
/// be empty. A template that cannot be parsed does not fail here, but when it is used.
ChatTemplates load_chat_templates(const Checkpoint& checkpoint);

/// bos_token, eos_token, ... as templates see them.
std::map<std::string, std::string> special_token_texts(const Tokenizer& tokenizer);

}  // namespace ef
