// Activations of one forward call, reused by every step: allocated once for the largest step.
#pragma once
#include <cstdint>
#include <vector>

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
  float* cos = nullptr;             ///< [T, rotary / 2]
  float* sin = nullptr;
  float* gathered = nullptr;    ///< [logit rows, H]
  float* logits = nullptr;      ///< [logit rows, vocab]
  int32_t* position = nullptr;  ///< [T]
  int32_t* sequence = nullptr;  ///< [T]

  /// Host copies, where the backend's memory is not the host's: cos and sin on their way there, logits on their way
  /// back.
  std::vector<float> host_cos, host_sin, host_logits;

 private:
  Buffer buffer_;
};

}  // namespace ef
