// The choice of experts in layers.cu: that of route.cuh for the common rules, without memory in between.
#pragma once
#include "layers.cuh"
#include "route.cuh"

namespace ef::cuda::stay {

constexpr int kRouted = 8;  // experts of a lane, at most

/// Whether route_few() knows the rules.
__host__ __device__ inline bool few_routes(const RouteParams& p) {
  return p.score != Score::kSparsemixer && p.groups <= 1 && p.experts <= kLanes * kRouted && p.top_k <= kLanes;
}

struct Choice {
  int id = 0;
  float weight = 0;
};

// By one warp, logits from the exchange: rank i's choice at lane i.
template <int kEach>
__device__ Choice route_few(const RouteParams& p, const float* logits, unsigned tag, int lane) {
  float score[kEach];
  uint32_t key[kEach];
  Patience patience;
  for (bool all = false; !all; all ? void() : patience.wait()) {
    all = true;
#pragma unroll
    for (int j = 0; j < kEach; ++j) key[j] = lane + kLanes * j < p.experts ? look1(logits + lane + kLanes * j) : tag;
#pragma unroll
    for (int j = 0; j < kEach; ++j) all &= ((key[j] ^ tag) & 1) == 0;
  }
  bool bad = false;
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    score[j] = lane + kLanes * j < p.experts ? __uint_as_float(key[j]) : -INFINITY;
    bad |= isnan(score[j]);
    largest = fmaxf(largest, score[j]);
  }
  if (p.score == Score::kSoftmax) {
    largest = routing::warp_max(largest);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (lane + kLanes * j < p.experts) sum += score[j] = expf(score[j] - largest);
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < kEach; ++j) score[j] /= sum;
  } else if (p.score == Score::kSigmoid) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) score[j] = 1.f / (1.f + expf(-score[j]));
  }
  // Ordered like the numbers, above zero, which is what has been taken.
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + kLanes * j;
    float v = score[j] + 0.f;  // the two zeros are equal
    if (p.selection_bias && e < p.experts) {
      const float bias = __ldg(p.selection_bias + e);
      bad |= isnan(bias), v = score[j] + bias + 0.f;
    }
    const uint32_t bits = __float_as_uint(isnan(v) ? -INFINITY : v);
    key[j] = e >= p.experts ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  Choice mine;
#pragma unroll 1
  for (int i = 0; i < p.top_k; ++i) {
    uint32_t best = 0;
    int at = 0;
    float its = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (key[j] > best) best = key[j], at = lane + kLanes * j, its = score[j];
    const uint32_t most = routing::warp_max(best);
    // The lowest index wins: the largest complement.
    const int chosen = int(~routing::warp_max(best == most ? ~uint32_t(at) : 0u));
    its = __shfl_sync(kWholeWarp, its, chosen % kLanes);
    if (lane == i) mine.id = chosen, mine.weight = its;
#pragma unroll
    for (int j = 0; j < kEach; ++j) key[j] = chosen == lane + kLanes * j ? 0 : key[j];
  }
  const bool chose = lane < p.top_k;
  if (p.score == Score::kSoftmaxAfterTopK) {
    largest = routing::warp_max(chose ? mine.weight : -INFINITY);
    mine.weight = chose ? expf(mine.weight - largest) : 0.f;
    mine.weight /= warp_sum(mine.weight);
  }
  sum = 0;
#pragma unroll 4
  for (int i = 0; i < p.top_k; ++i) sum += __shfl_sync(kWholeWarp, mine.weight, i);
  if (p.renormalise) mine.weight /= sum + p.renormalise_eps;
  mine.weight = __any_sync(kWholeWarp, bad) ? NAN : mine.weight * p.scale;
  return mine;
}

}  // namespace ef::cuda::stay
