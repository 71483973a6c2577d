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

// The choice by one warp, of logits from the exchange: first which experts, then their weights, so that the former are
// not waited for longer than they need. Lane l has the scores of experts kEach * l to kEach * l + kEach - 1.
template <int kEach>
struct Few {
  float score[kEach] = {};
  bool bad = false, scored = false;
  float largest = -INFINITY;  // of the logits

  __device__ void read(const RouteParams& p, const float* logits, unsigned tag, int lane) {
    uint32_t bits[kEach];
    Patience patience;
    for (bool all = false; !all; all ? void() : patience.wait()) {
      all = true;
#pragma unroll
      for (int j = 0; j < kEach; j += 4) {
        uint4 v = make_uint4(tag, tag, tag, tag);
        if (kEach * lane + j < p.experts) v = look(logits + kEach * lane + j);
        bits[j] = v.x, bits[j + 1] = v.y, bits[j + 2] = v.z, bits[j + 3] = v.w;
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) all &= kEach * lane + j >= p.experts || ((bits[j] ^ tag) & 1) == 0;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      score[j] = kEach * lane + j < p.experts ? __uint_as_float(bits[j]) : -INFINITY;
      bad |= isnan(score[j]);
    }
  }
  // From logits.
  __device__ void to_scores(const RouteParams& p, int lane) {
    scored = true;
    if (p.score == Score::kSoftmax) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) largest = fmaxf(largest, score[j]);
      largest = routing::warp_max(largest);
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (kEach * lane + j < p.experts) sum += score[j] = expf(score[j] - largest);
      sum = warp_sum(sum);
#pragma unroll
      for (int j = 0; j < kEach; ++j) score[j] /= sum;
    } else if (p.score == Score::kSigmoid) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) score[j] = 1.f / (1.f + expf(-score[j]));
    }
  }
  // Rank i's expert, at lane i.
  __device__ int choose(const RouteParams& p, int lane) {
    // A softmax rises with its logits; the other rules are about what they are made of.
    if (p.selection_bias || p.score == Score::kSigmoid) to_scores(p, lane);
    uint32_t key[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int e = kEach * lane + j;
      float v = score[j] + 0.f;  // the two zeros are equal
      if (p.selection_bias && e < p.experts) {
        const float bias = __ldg(p.selection_bias + e);
        bad |= isnan(bias), v = score[j] + bias + 0.f;
      }
      // Ordered like the numbers, above zero, which is what has been taken.
      const uint32_t bits = __float_as_uint(isnan(v) ? -INFINITY : v);
      key[j] = e >= p.experts ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
    }
    int id = 0;
#pragma unroll 1
    for (int i = 0; i < p.top_k; ++i) {
      uint32_t best = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) best = max(best, key[j]);
      const uint32_t most = routing::warp_max(best);
      // The lowest index wins: that of the lowest lane, and there the first.
      const int from = __ffs(int(__ballot_sync(kWholeWarp, best == most))) - 1;
      int at = 0;
#pragma unroll
      for (int j = kEach - 1; j >= 0; --j)
        if (key[j] == most) at = j;
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (lane == from && j == at) key[j] = 0;
      const int chosen = __shfl_sync(kWholeWarp, kEach * lane + at, from);
      if (lane == i) id = chosen;
    }
    return id;
  }
  // Of lane's choice.
  __device__ float weigh(const RouteParams& p, int id, int lane) {
    if (!scored) to_scores(p, lane);
    float weight = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float its = __shfl_sync(kWholeWarp, score[j], id / kEach);
      if (id % kEach == j) weight = its;
    }
    const bool chose = lane < p.top_k;
    if (!chose) weight = 0;
    if (p.score == Score::kSoftmaxAfterTopK) {
      largest = routing::warp_max(chose ? weight : -INFINITY);
      weight = chose ? expf(weight - largest) : 0.f;
      weight /= warp_sum(weight);
    }
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < p.top_k; ++i) sum += __shfl_sync(kWholeWarp, weight, i);
    if (p.renormalise) weight /= sum + p.renormalise_eps;
    return __any_sync(kWholeWarp, bad) ? NAN : weight * p.scale;
  }
};

}  // namespace ef::cuda::stay
