// The weights that are always resident: named views with their shapes, data owned apart. Routed experts are not here
// (experts.h).
#pragma once
#include <functional>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/model/binding.h"

namespace ef {

/// H = hidden, Q = heads * head_dim, KV = kv_heads * head_dim. Vectors are float32; a null pointer means the model has
/// none.
struct LayerWeights {
  const float *attn_norm = nullptr, *attn_norm_bias = nullptr;  ///< [H]
  MatrixView q, k, v;  ///< [Q, H], [KV, H], [KV, H]; latent: q is [heads * (nope + rope), H or q_lora]
  MatrixView o;        ///< [H, Q] or [H, heads * v_dim]
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  ///< [head_dim], or [Q] and [KV]
  const float* sinks = nullptr;                      ///< [heads]
  // latent attention; q above is q_b when q_a is present
  MatrixView q_a;                                             ///< [q_lora, H]
  const float* q_a_norm = nullptr;                            ///< [q_lora]
  MatrixView kv_a;                                            ///< [kv_lora + rope, H]
  const float* kv_a_norm = nullptr;                           ///< [kv_lora]
  MatrixView k_b;                                             ///< [heads * kv_lora, nope]: q_nope -> latent, per head
  MatrixView v_b;                                             ///< [heads * v_dim, kv_lora]: latent -> value, per head
  const float *ffn_norm = nullptr, *ffn_norm_bias = nullptr;  ///< [H]
  MatrixView router;                                          ///< [experts, H]
  const float* router_bias = nullptr;                         ///< [experts]; part of the logits
  const float* selection_bias = nullptr;                      ///< [experts]; selects only
  MatrixView dense_gate, dense_up, dense_down;                ///< [dense_ffn, H] x2, [H, dense_ffn]
  MatrixView shared_gate, shared_up, shared_down;             ///< [shared_ffn, H] x2, [H, shared_ffn]
  MatrixView shared_expert_gate;                              ///< [1, H]
};

struct Weights {
  MatrixView embed;                                               ///< [vocab, H]
  MatrixView head;                                                ///< [vocab, H]; the embedding if tied
  const float* head_bias = nullptr;                               ///< [vocab]
  const float *final_norm = nullptr, *final_norm_bias = nullptr;  ///< [H]
  std::vector<LayerWeights> layers;

  std::vector<Buffer> owned;  ///< what the views point into
  uint64_t bytes = 0;         ///< sum of owned
};

/// Reads every bound tensor to the backend. NaN or Inf in norms, router or biases is a ModelError naming the tensor.
/// progress(done_bytes, total_bytes) may be empty.
Weights load_weights(const Config& config, const Binding& binding, const TensorDirectory& directory, Backend& backend,
                     const std::function<void(uint64_t, uint64_t)>& progress = {});

}  // namespace ef
