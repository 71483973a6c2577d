// What attend() does for which shapes.
#include <algorithm>
#include <cmath>

#include "attend.cuh"

namespace ef::cuda {
namespace {

constexpr int64_t kFewRows = 4;                // of a sequence: a block each reads the keys again, through the cache
constexpr int64_t kReferenceFloats = 8 << 20;  // scratch of the reference, for as many rows as fit

enum class Way : uint8_t { kDecode, kPrefill, kLatent, kReference };

int64_t prefill_units(const AttendParams& p, const PrefillPlan& plan) {
  return (p.kv.rows + plan.tokens - 1) / plan.tokens * p.kv.kv_heads * plan.chunks;
}

PrefillPlan prefill_plan(const AttendParams& p) {
  PrefillPlan plan;
  const int per_kv = p.heads / p.kv.kv_heads;
  plan.chunk = std::min(per_kv, kPrefillRows), plan.chunks = (per_kv + plan.chunk - 1) / plan.chunk;
  plan.tokens = kPrefillRows / plan.chunk;
  with_dims(p.kv.k_dim, p.kv.v_dim, [&](auto dims) { plan.shared = PrefillShared<decltype(dims)>::bytes(); });
  // Keys are split where blocks of tokens leave most of the device idle, into parts that are worth a block.
  constexpr int64_t kWorth = 256;  // keys
  const int64_t reach = p.window > 0 ? std::min<int64_t>(p.reach, p.window + plan.tokens) : p.reach;
  plan.splits = int(std::max<int64_t>(
      1, std::min(device_traits().multiprocessors / prefill_units(p, plan), (reach + kWorth - 1) / kWorth)));
  return plan;
}

LatentPlan latent_plan(const AttendParams& p) {
  LatentPlan plan;
  plan.chunks = (p.heads + kLatentHeads - 1) / kLatentHeads;
  // Nothing but the cache's form is made of such keys: where more is asked for, it is done before.
  plan.new_in_input = p.one_row_each && !p.q_norm && !p.k_norm && p.clip <= 0 && p.rotary == 0;
  with_latent_dims(p.kv.k_dim, p.kv.v_dim, [&](auto dims) { plan.shared = LatentShared<decltype(dims)>::bytes(); });
  const int64_t visible = p.window > 0 ? std::min<int64_t>(p.reach, p.window) : p.reach;
  const int64_t tiles = std::max<int64_t>(1, (visible + kLatentKeys - 1) / kLatentKeys);
  const int64_t room = device_traits().multiprocessors / std::max<int64_t>(1, p.kv.rows * plan.chunks);
  plan.splits = int(std::max<int64_t>(1, std::min({tiles, room, int64_t(kLatentPieces)})));
  return plan;
}

Way way_of(const AttendParams& p) {
  const bool tensor_cores = p.kv.type == 1 || (p.kv.type == 2 && device_traits().capability >= 80);
  if (tensor_cores && !p.kv.v && p.kv.kv_heads == 1 && with_latent_dims(p.kv.k_dim, p.kv.v_dim, [](auto) {}) &&
      latent_plan(p).shared + kLatentStatic <= size_t(device_traits().shared_bytes))
    return Way::kLatent;
  if (!tensor_cores || !p.kv.v || !with_dims(p.kv.k_dim, p.kv.v_dim, [](auto) {})) return Way::kReference;
  if (p.one_row_each || p.kv.rows <= kFewRows) return Way::kDecode;
  return prefill_plan(p).shared + kPrefillStatic <= size_t(device_traits().shared_bytes) ? Way::kPrefill : Way::kDecode;
}

int64_t decode_units(const AttendParams& p, const DecodePlan& plan) { return p.kv.rows * p.kv.kv_heads * plan.chunks; }

DecodePlan decode_plan(const AttendParams& p) {
  DecodePlan plan;
  plan.warps = kDecodeThreads / 32;
  with_dims(p.kv.k_dim, p.kv.v_dim, [&](auto dims) {
    const auto bytes = [&] { return DecodeShared<decltype(dims)>::bytes(plan.warps); };
    while (plan.warps > 1 && bytes() > size_t(device_traits().shared_bytes) - kDecodeStatic) plan.warps /= 2;
    plan.shared = bytes();
  });
  const int per_kv = p.heads / p.kv.kv_heads;
  plan.chunk = std::min(per_kv, kDecodeHeads), plan.chunks = (per_kv + plan.chunk - 1) / plan.chunk;
  plan.new_in_input = p.one_row_each;
  // Another piece costs the join about a ninth of what another tile costs a warp: as many pieces as balance the two,
  // and no more than a block for each multiprocessor: that is enough under way to keep the memory busy.
  constexpr int64_t kMostPieces = 64;
  const int64_t visible = p.window > 0 ? std::min<int64_t>(p.reach, p.window) : p.reach;
  const int64_t tiles = std::max<int64_t>(1, (visible + kTile * plan.warps - 1) / (kTile * plan.warps));
  const int64_t room = device_traits().multiprocessors / decode_units(p, plan);
  const int64_t balance = int64_t(std::ceil(std::sqrt(8.5 * double(tiles))));
  plan.splits = int(std::max<int64_t>(1, std::min({tiles, balance, room, kMostPieces})));
  return plan;
}

cudaError_t decode(const AttendParams& given, cudaStream_t stream) {
  AttendParams p = given;
  const DecodePlan plan = decode_plan(p);
  if (!plan.new_in_input) {
    if (const cudaError_t error = attend_heads(p, QueryForm::kFloat, stream)) return error;
    p.q_norm = p.k_norm = nullptr, p.clip = 0, p.rotary = 0, p.settled = false;
  }
  return p.kv.type == 1 ? attend_decode<KvF16>(p, plan, stream) : attend_decode<KvBF16>(p, plan, stream);
}

cudaError_t latent(const AttendParams& given, cudaStream_t stream) {
  AttendParams p = given;
  const LatentPlan plan = latent_plan(p);
  if (!plan.new_in_input) {
    if (const cudaError_t error = attend_heads(p, QueryForm::kFloat, stream)) return error;
    p.settled = false;
  }
  return p.kv.type == 1 ? attend_latent<KvF16>(p, plan, stream) : attend_latent<KvBF16>(p, plan, stream);
}

cudaError_t prefill(const AttendParams& p, cudaStream_t stream) {
  if (const cudaError_t error = attend_heads(p, QueryForm::kHalf, stream)) return error;
  const PrefillPlan plan = prefill_plan(p);
  return p.kv.type == 1 ? attend_prefill<KvF16>(p, plan, stream) : attend_prefill<KvBF16>(p, plan, stream);
}

int64_t reference_rows(const AttendParams& p) {
  const int64_t of_row = attention_scratch_floats(1, p.heads, p.kv.v_dim, p.reach);
  return std::max<int64_t>(1, std::min(p.kv.rows, kReferenceFloats / of_row));
}

cudaError_t reference(const AttendParams& p, cudaStream_t stream) {
  if (const cudaError_t error = attend_heads(p, QueryForm::kFloat, stream)) return error;
  const int64_t wave = reference_rows(p);
  AttentionParams a;
  a.kv = p.kv;
  a.heads = p.heads, a.window = p.window, a.scale = p.scale, a.sinks = p.sinks, a.reach = p.reach;
  a.scratch = static_cast<float*>(p.scratch);
  for (int64_t row = 0; row < p.kv.rows; row += wave) {
    a.kv.rows = std::min(wave, p.kv.rows - row);
    a.kv.position = p.kv.position + row, a.kv.sequence = p.kv.sequence + row;
    a.q = p.q + row * p.heads * p.kv.k_dim;
    a.out = p.out + row * p.heads * p.kv.v_dim;
    if (const cudaError_t error = attention(a, stream)) return error;
  }
  return cudaSuccess;
}

}  // namespace

uint64_t attend_scratch(const AttendParams& p) {
  if (p.kv.rows <= 0) return 0;
  const auto of_pieces = [&](int64_t units, int splits, int heads) {
    return splits > 1 ? uint64_t(units * splits * heads * (p.kv.v_dim + 2)) * sizeof(float) : 0;
  };
  switch (way_of(p)) {
    case Way::kDecode: {
      const DecodePlan plan = decode_plan(p);
      return of_pieces(decode_units(p, plan), plan.splits, plan.chunk);
    }
    case Way::kLatent: {
      const LatentPlan plan = latent_plan(p);
      return of_pieces(p.kv.rows * plan.chunks, plan.splits, kLatentHeads);
    }
    case Way::kPrefill: {
      const PrefillPlan plan = prefill_plan(p);
      return of_pieces(prefill_units(p, plan), plan.splits, kPrefillRows);
    }
    default:
      return uint64_t(attention_scratch_floats(reference_rows(p), p.heads, p.kv.v_dim, p.reach)) * sizeof(float);
  }
}

int64_t attend_counters(const AttendParams& p) {
  return p.kv.rows > 0 && way_of(p) == Way::kDecode ? decode_units(p, decode_plan(p)) : 0;
}

cudaError_t attend(const AttendParams& p, cudaStream_t stream) {
  if (p.kv.rows <= 0) return cudaSuccess;
  switch (way_of(p)) {
    case Way::kDecode:
      return decode(p, stream);
    case Way::kLatent:
      return latent(p, stream);
    case Way::kPrefill:
      return prefill(p, stream);
    default:
      return reference(p, stream);
  }
}

}  // namespace ef::cuda
