#include "expertflow/model/state.h"

#include <algorithm>
#include <type_traits>

namespace ef {

namespace {

// The one list of buffers: plan() sums it, the constructor places it.
template <class Visit>
void for_each_buffer(const Config& c, int64_t rows, int64_t logit_rows, State* s, Visit&& visit) {
  const int64_t hidden = c.hidden, heads = c.heads;
  const int64_t lora = c.latent ? c.latent->kv_lora : 0, rope = c.latent ? c.latent->rope : 0;
  const int64_t k_width = c.latent ? lora + rope : int64_t(c.kv_heads) * c.head_dim;
  const int64_t v_width = c.latent ? 0 : int64_t(c.kv_heads) * c.head_dim;
  const int64_t ffn = std::max(c.dense_ffn, c.shared_ffn);
  const bool shared = c.shared_ffn > 0;
  auto f = [&](float* State::*member, int64_t n) { visit(s ? reinterpret_cast<void**>(&(s->*member)) : nullptr, n); };
  auto i = [&](int32_t* State::*member, int64_t n) { visit(s ? reinterpret_cast<void**>(&(s->*member)) : nullptr, n); };
  f(&State::x, rows * hidden);
  f(&State::normed, rows * hidden);
  f(&State::block_out, rows * hidden);
  f(&State::q, rows * heads * c.head_dim);
  f(&State::k, rows * k_width);
  f(&State::v, rows * v_width);
  f(&State::attn, rows * heads * (c.latent ? lora : c.head_dim));
  if (c.latent) {
    f(&State::q_lora, rows * c.latent->q_lora);
    f(&State::latent, rows * lora);
    f(&State::q_latent, rows * heads * (lora + rope));
    f(&State::heads_out, rows * heads * c.latent->v_dim);
  }
  f(&State::ffn_gate, rows * ffn);
  f(&State::ffn_up, rows * ffn);
  f(&State::shared_out, shared ? rows * hidden : 0);
  f(&State::shared_scale, shared ? rows : 0);
  f(&State::router_logits, rows * c.router.experts);
  f(&State::router_weights, rows * c.router.top_k);
  i(&State::router_ids, rows * c.router.top_k);
  f(&State::gathered, logit_rows * hidden);
  f(&State::logits, logit_rows * c.vocab);
  f(&State::top, logit_rows * 2 * State::kMostTop);
}

constexpr uint64_t kAlign = 64;
uint64_t padded(int64_t elements) { return (uint64_t(elements) * 4 + kAlign - 1) / kAlign * kAlign; }

State::Inputs inputs_at(std::byte* memory, int64_t rows, int64_t rope_pairs) {
  State::Inputs in;
  const auto take = [&](auto*& member, int64_t n) {
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(memory + in.bytes);
    in.bytes += padded(n);
  };
  take(in.token, rows);
  take(in.position, rows);
  take(in.sequence, rows);
  take(in.cos, rows * rope_pairs);
  take(in.sin, rows * rope_pairs);
  return in;
}

uint64_t inputs_bytes(const Config& c, int64_t rows) { return inputs_at(nullptr, rows, c.rope.rotary_dim / 2).bytes; }

}  // namespace

uint64_t State::bytes_for(const Config& config, int64_t max_rows, int64_t max_logit_rows) {
  uint64_t total = inputs_bytes(config, max_rows);
  for_each_buffer(config, max_rows, max_logit_rows, nullptr, [&](void**, int64_t n) { total += padded(n); });
  return total;
}

State::State(const Config& config, Backend& backend, int64_t rows, int64_t logit_rows)
    : max_rows(rows), max_logit_rows(logit_rows), bytes(bytes_for(config, rows, logit_rows)) {
  buffer_ = backend.allocate(bytes, {Region::kDynamic, "activations"});
  uint64_t offset = 0;
  for_each_buffer(config, rows, logit_rows, this, [&](void** member, int64_t n) {
    if (n > 0) *member = buffer_.data() + offset;
    offset += padded(n);
  });
  inputs_memory_ = buffer_.data() + offset;
  rope_pairs_ = config.rope.rotary_dim / 2;
  host_logits = logits;
  if (!backend.memory_is_host()) {
    const uint64_t input_bytes = inputs_bytes(config, rows);
    const uint64_t logit_bytes = padded(logit_rows * config.vocab);
    host_memory_ = backend.allocate_host(input_bytes + logit_bytes + padded(logit_rows * 2 * kMostTop));
    host_logits = reinterpret_cast<float*>(host_memory_.get() + input_bytes);
    host_top = reinterpret_cast<float*>(host_memory_.get() + input_bytes + logit_bytes);
  }
  place_inputs(rows);
}

void State::place_inputs(int64_t rows) {
  inputs = inputs_at(inputs_memory_, rows, rope_pairs_);
  host_inputs = host_memory_ ? inputs_at(host_memory_.get(), rows, rope_pairs_) : inputs;
}

}  // namespace ef
