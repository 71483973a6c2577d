// Expert choice by one warp. The rules, and what a NaN does, are those of backend/cpu/router.cpp.
#pragma once
#include "params.h"

namespace ef::cuda::routing {

constexpr unsigned kAll = 0xffffffffu;

__device__ inline float warp_max(float v) {
  for (int mask = 16; mask > 0; mask /= 2) v = fmaxf(v, __shfl_xor_sync(kAll, v, mask));
  return v;
}
__device__ inline float warp_sum(float v) {
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(kAll, v, mask);
  return v;
}

// The best of n that is not taken: the largest, the lower index among equals; NaN counts as -inf. Same at all lanes.
__device__ inline int best_of(const float* value, const uint8_t* taken, int n, int lane) {
  float best = 0;
  int at = -1;
  for (int i = lane; i < n; i += 32) {
    if (taken[i]) continue;
    const float v = isnan(value[i]) ? -INFINITY : value[i];
    if (at < 0 || v > best) best = v, at = i;
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(kAll, best, mask);
    const int from = __shfl_xor_sync(kAll, at, mask);
    if (from >= 0 && (at < 0 || other > best || (other == best && from < at))) best = other, at = from;
  }
  return at;
}

__device__ inline uint32_t warp_max(uint32_t v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int mask = 16; mask > 0; mask /= 2) v = max(v, __shfl_xor_sync(kAll, v, mask));
  return v;
#else
  return __reduce_max_sync(kAll, v);
#endif
}

// The k best of n as best_of() chooses them, one after the other: take(i, index) at one lane. n <= 32 * kPerLane.
template <int kPerLane, class Take>
__device__ void best_in_registers(const float* value, int n, int k, int lane, Take take) {
  // Ordered like the numbers, above zero, which is what has been taken.
  uint32_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    const float v = e < n ? value[e] + 0.f : 0.f;  // the two zeros are equal
    const uint32_t bits = __float_as_uint(isnan(v) ? -INFINITY : v);
    key[i] = e >= n ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  for (int i = 0; i < k; ++i) {
    uint32_t best = 0, at = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (key[j] > best) best = key[j], at = uint32_t(lane + 32 * j);
    const uint32_t largest = warp_max(best);
    // The lowest index wins: the largest complement.
    const uint32_t chosen = ~warp_max(best == largest ? ~at : 0u);
    if (lane == 0) take(i, int(chosen));
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) key[j] = chosen == uint32_t(lane + 32 * j) ? 0 : key[j];
  }
}

// out may be in. n numbers, all lanes take part.
__device__ inline void softmax(const float* in, float* out, int n, int lane) {
  float largest = -INFINITY;
  for (int i = lane; i < n; i += 32) largest = fmaxf(largest, in[i]);
  largest = warp_max(largest);
  float sum = 0;
  for (int i = lane; i < n; i += 32) sum += out[i] = expf(in[i] - largest);
  sum = warp_sum(sum);
  for (int i = lane; i < n; i += 32) out[i] /= sum;
  __syncwarp();
}

// A row's space in shared memory.
struct Space {
  float *score, *choice, *group, *weights;
  uint8_t *taken, *kept;
  __device__ Space(const RouteParams& p, float* memory)
      : score(memory),
        choice(score + p.experts),
        group(choice + p.experts),
        weights(group + p.groups),
        taken(reinterpret_cast<uint8_t*>(weights + p.top_k)),
        kept(taken + p.experts) {}
};

__device__ inline float group_value(const float* choice, int n, bool sum_of_top2) {
  float best = -INFINITY, second = -INFINITY;
  for (int i = 0; i < n; ++i) {
    if (choice[i] > best)
      second = best, best = choice[i];
    else if (choice[i] > second)
      second = choice[i];
  }
  return !sum_of_top2 || n < 2 ? best : best + second;
}

__device__ inline void mask_groups(const RouteParams& p, Space& s, int lane) {
  const int size = p.experts / p.groups;
  for (int g = lane; g < p.groups; g += 32) {
    s.group[g] = group_value(s.choice + g * size, size, p.sum_of_top2);
    s.kept[g] = 0;
  }
  __syncwarp();
  for (int i = 0; i < p.top_groups; ++i) {
    const int g = best_of(s.group, s.kept, p.groups, lane);
    if (lane == 0) s.kept[g] = 1;
    __syncwarp();
  }
  for (int e = lane; e < p.experts; e += 32)
    if (!s.kept[e / size]) s.choice[e] = -INFINITY;
  __syncwarp();
}

__device__ inline void choose(const RouteParams& p, const float* logits, Space& s, int32_t* ids, int lane) {
  if (p.score == Score::kSoftmax) {
    softmax(logits, s.score, p.experts, lane);
  } else {
    for (int e = lane; e < p.experts; e += 32)
      s.score[e] = p.score == Score::kSigmoid ? 1.f / (1.f + expf(-logits[e])) : logits[e];
    __syncwarp();
  }
  for (int e = lane; e < p.experts; e += 32)
    s.choice[e] = p.selection_bias ? s.score[e] + p.selection_bias[e] : s.score[e];
  __syncwarp();
  if (p.groups > 1) mask_groups(p, s, lane);
  const auto take = [&](int i, int e) { ids[i] = e, s.weights[i] = s.score[e], s.taken[e] = 1; };
  if (p.experts <= 32 * 4) {
    best_in_registers<4>(s.choice, p.experts, p.top_k, lane, take);
  } else if (p.experts <= 32 * 16) {
    best_in_registers<16>(s.choice, p.experts, p.top_k, lane, take);
  } else {
    for (int i = 0; i < p.top_k; ++i) {
      const int e = best_of(s.choice, s.taken, p.experts, lane);
      if (lane == 0) take(i, e);
      __syncwarp();
    }
  }
  __syncwarp();
  if (p.score == Score::kSoftmaxAfterTopK) softmax(s.weights, s.weights, p.top_k, lane);
}

__device__ inline void sparsemixer(const RouteParams& p, const float* logits, Space& s, int32_t* ids, int lane) {
  for (int e = lane; e < p.experts; e += 32) s.choice[e] = logits[e];
  __syncwarp();
  for (int i = 0; i < p.top_k; ++i) {
    const int best = best_of(s.choice, s.taken, p.experts, lane);
    const float largest = s.choice[best];
    float sum = 0;
    for (int e = lane; e < p.experts; e += 32) {
      const float factor = fmaxf(fabsf(logits[e]), largest);
      if ((largest - logits[e]) / factor > 2 * p.jitter_eps) continue;
      sum += expf(s.choice[e] - largest);
    }
    sum = warp_sum(sum);
    __syncwarp();
    if (lane == 0) ids[i] = best, s.weights[i] = 1.f / sum, s.taken[best] = 1, s.choice[best] = -INFINITY;
    __syncwarp();
  }
}

// Floats of a row's logits and, behind them, of what route_row() takes.
__host__ __device__ inline int row_floats(const RouteParams& p) {
  return 3 * p.experts + p.groups + p.top_k + (p.experts + p.groups + 3) / 4;
}

// ids and weights of a row from its logits, which may be in shared memory. All lanes take part.
__device__ inline void route_row(const RouteParams& p, int64_t row, const float* logits, float* memory, int lane) {
  Space s(p, memory);
  int32_t* ids = p.ids + row * p.top_k;
  for (int e = lane; e < p.experts; e += 32) s.taken[e] = 0;
  __syncwarp();
  if (p.score == Score::kSparsemixer)
    sparsemixer(p, logits, s, ids, lane);
  else
    choose(p, logits, s, ids, lane);
  int bad = 0;
  for (int e = lane; e < p.experts; e += 32)
    bad |= isnan(logits[e]) || (p.selection_bias && isnan(p.selection_bias[e]));
  const bool nan = __any_sync(kAll, bad);
  float sum = 0;
  for (int i = 0; i < p.top_k; ++i) sum += s.weights[i];
  for (int i = lane; i < p.top_k; i += 32) {
    float w = s.weights[i];
    if (p.renormalise) w /= sum + p.renormalise_eps;
    p.weights[row * p.top_k + i] = nan ? NAN : w * p.scale;
  }
  __syncwarp();
}

}  // namespace ef::cuda::routing
