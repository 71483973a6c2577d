// Golden outputs of a fixture: prompts, logits, expert choices and greedy tokens from Hugging Face (float32).
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "expertflow/base/ids.h"

namespace ef::testing {

struct GoldenCase {
  std::vector<TokenId> ids;
  std::vector<float> logits;  ///< [ids, vocab]
  std::vector<TokenId> greedy;
  std::vector<std::vector<int32_t>> experts;  ///< [MoE layer][ids * k], ascending within a row
};

/// Reads golden.safetensors. cases_only_logits: fixtures whose greedy tokens do not apply (dynamic, longrope).
std::vector<GoldenCase> read_golden(const std::filesystem::path& file);

std::filesystem::path fixtures();  ///< the unpacked archive

}  // namespace ef::testing
