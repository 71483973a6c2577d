// Activations of one forward call, reused by every step: allocated once for the largest step.
#pragma once
#include <cstdint>
#include <memory>

#include "expertflow/backend/backend.h"
#include "expertflow/model/config.h"

namespace ef {

struct State {
  State(const Config& config, Backend& backend, int64_t max_rows, int64_t max_logit_rows);
  static uint64_t bytes_for(const Config& config, int64_t max_rows, int64_t max_logit_rows);

  int64_t max_rows = 0, max_logit_rows = 0;
  uint64_t bytes = 0;

  // T = max_rows, H = hidden
  float* x = nullptr;               ///< [T, H] residual stream
  float* normed = nullptr;          ///< [T, H] input of a block
  float* block_out = nullptr;       ///< [T, H] output of a block
  float* q = nullptr;               ///< [T, heads * head_dim]
  float* k = nullptr;               ///< [T, kv_heads * k_dim]
  float* v = nullptr;               ///< [T, kv_heads * v_dim]
  float* attn = nullptr;            ///< [T, heads * v_dim]; latent: [T, heads * kv_lora]
  float* q_lora = nullptr;          ///< [T, q_lora]
  float* latent = nullptr;          ///< [T, kv_lora]
  float* q_latent = nullptr;        ///< [T, heads * (kv_lora + rope)]
  float* heads_out = nullptr;       ///< [T, heads * v_dim], latent only
  float* ffn_gate = nullptr;        ///< [T, max(dense_ffn, shared_ffn)]
  float* ffn_up = nullptr;          ///< [T, max(dense_ffn, shared_ffn)]
  float* shared_out = nullptr;      ///< [T, H]
  float* shared_scale = nullptr;    ///< [T, 1] logit of the shared expert's gate
  float* router_logits = nullptr;   ///< [T, experts]
  float* router_weights = nullptr;  ///< [T, top_k]
  int32_t* router_ids = nullptr;    ///< [T, top_k]
  float* gathered = nullptr;        ///< [logit rows, H]
  float* logits = nullptr;          ///< [logit rows, vocab]

  /// What the host says about a step, rows of it as place_inputs() was told: one region, one copy.
  struct Inputs {
    TokenId* token = nullptr;     ///< [rows]
    int32_t* position = nullptr;  ///< [rows]
    int32_t* sequence = nullptr;  ///< [rows]
    float* cos = nullptr;         ///< [rows, rotary / 2]
    float* sin = nullptr;
    uint64_t bytes = 0;
  };
  Inputs inputs;       ///< in the backend's memory
  Inputs host_inputs;  ///< the same where that is the host's, else where it is copied from
  void place_inputs(int64_t rows);
  float* host_logits = nullptr;  ///< likewise
  /// Where a step asks for the largest logits alone: ids [logit rows, top], then the logits, likewise.
  static constexpr int kMostTop = 64;
  float* top = nullptr;
  float* host_top = nullptr;

 private:
  Buffer buffer_;
  std::byte* inputs_memory_ = nullptr;
  int64_t rope_pairs_ = 0;
  std::shared_ptr<std::byte> host_memory_;  // inputs, logits, the largest of them
};

}  // namespace ef
