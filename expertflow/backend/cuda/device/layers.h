// All layers of a decoding step for one row with weights of 16 bits, by one kernel that stays: layers.cu.
#pragma once
#include "fast.h"

namespace ef::cuda {

/// What differs from layer to layer; matrices of LayersParams::format, vectors of float32, null where there is none.
struct LayerOf {
  const float *attn_norm = nullptr, *ffn_norm = nullptr;  ///< [hidden], RMS
  const uint8_t* matrix[4] = {};                          ///< q, k, v and o, as in model/weights.h
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;               ///< [head_dim], RMS
  const float* sinks = nullptr;                                   ///< [heads]
  const uint8_t* router = nullptr;                                ///< [experts, hidden]
  const float *router_bias = nullptr, *selection_bias = nullptr;  ///< [experts]
  const ExpertEntry* table = nullptr;                             ///< [experts], without biases
  uint8_t *keys = nullptr, *values = nullptr;                     ///< as KvParams::k and v
  const int32_t* block_table = nullptr;
  int max_blocks = 0, window = 0;
};

constexpr int kLayersAtOnce = 64;

/// x += attention, x += experts, for each layer: as norm_linear, attend, linear_add, norm_route and routed_experts one
/// after the other.
struct LayersParams {
  Fmt format = Fmt::kBF16, router_format = Fmt::kBF16;  ///< F16 or BF16; the router's also F32
  int hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  float attn_eps = 0, head_eps = 0, ffn_eps = 0;
  int kv_type = 1, block_tokens = 0;  ///< as in KvParams, 1 or 2
  const int32_t *position = nullptr, *sequence = nullptr;
  float scale = 1.f, clip = 0;
  int rotary = 0;  ///< 0: no rotary embedding
  bool interleaved = false;
  const float *cos = nullptr, *sin = nullptr;   ///< [rotary / 2]
  RouteParams route;                            ///< experts, top_k and the rules; no pointers
  ActivationParams activation;                  ///< kind, alpha and limit are read
  float attn_scale = 1.f, experts_scale = 1.f;  ///< of what is added to x
  float* x = nullptr;                           ///< [hidden]
  void* scratch = nullptr;                      ///< 256-byte aligned
  unsigned* arrived = nullptr;                  ///< kLayersCounters, zero before and after
  int count = 0;
  LayerOf layer[kLayersAtOnce];
};
constexpr int kLayersCounters = 2;

/// Shapes and devices that there is a kernel for, pointers aside: those of weights are multiples of 16 bytes.
bool layers_takes(const LayersParams&);
uint64_t layers_scratch(const LayersParams&);  ///< bytes
cudaError_t layers(const LayersParams&, cudaStream_t);

}  // namespace ef::cuda
