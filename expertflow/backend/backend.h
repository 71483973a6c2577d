// One Backend object per device: memory, streams, events, asynchronous copies, and the ops that the forward pass is
// made of. Pointers in op arguments are in the backend's memory. Shapes are row-major, outermost first; floats are
// float32 unless a MatrixView says otherwise. Ops are queued on a stream; the CPU backend has finished when the call
// returns, others have read what spans of the host hold. Contract (tests/contract/): a row's result does not depend on
// the other rows of the call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/backend/memory.h"
#include "expertflow/base/ids.h"
#include "expertflow/quant/formats.h"

namespace ef {

class MemoryRegions;

/// Where a stream's time went, each piece of work by itself.
struct StreamProfile {
  struct Entry {
    std::string name;   ///< of a kernel, or "copy to the device"
    bool copy = false;  ///< no kernel
    uint64_t count = 0;
    double seconds = 0;  ///< of all of them
  };
  std::vector<Entry> entries;
  double added_seconds = 0;  ///< what timing adds to each, taken away already
  double empty_seconds = 0;  ///< what a kernel that does nothing takes, measured so
};

/// An ordered queue of work on a device. What was queued once can be recorded and queued again at little cost, where
/// the device has a way to do that: same ops, same pointers and numbers; only what the pointers hold may differ.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;
  /// Queues what was recorded under the key; false if nothing was.
  virtual bool replay(uint64_t /*key*/) { return false; }
  /// From here to end_recording(), queued ops may be recorded under the key; they are carried out in any case. Between
  /// the two nobody waits for the stream, and nothing is copied from or to the host.
  virtual void begin_recording(uint64_t /*key*/) {}
  virtual void end_recording() {}
  /// Instead of end_recording() after an error: nothing is kept, and whatever was queued is in doubt.
  virtual void abandon_recording() noexcept {}
  /// Recordings name memory that is about to go.
  virtual void forget_recordings() {}

  /// From here to end_profile() every piece of work is timed: it begins when the one before has ended, and nothing is
  /// replayed. false: this device has no way to do that.
  virtual bool begin_profile() { return false; }
  virtual StreamProfile end_profile() { return {}; }
  /// Takes now what ops may take later: scratch of so many bytes, and whatever their arguments travel through.
  virtual void reserve(uint64_t /*scratch_bytes*/) {}
};

enum class NormKind : uint8_t { kRms, kLayer };
/// rows x width; weight and bias [width] (bias may be null). out may be x.
struct NormArgs {
  NormKind kind = NormKind::kRms;
  int64_t rows = 0, width = 0;
  float eps = 1e-6f;
  const float* weight = nullptr;
  const float* bias = nullptr;
  const float* x = nullptr;
  float* out = nullptr;
};

/// out[rows, w.rows] = x[rows, w.cols] * w^T + bias.
struct LinearArgs {
  MatrixView w;
  const float* bias = nullptr;  ///< [w.rows] or null
  int64_t rows = 0;
  const float* x = nullptr;
  float* out = nullptr;
};

/// Per head: out[rows, heads, n] = x[rows, heads, k] * w_h^T with w = heads matrices [n, k] stacked along rows.
struct HeadLinearArgs {
  MatrixView w;  ///< [heads * n, k]
  int64_t rows = 0;
  int heads = 0;
  const float* x = nullptr;
  int64_t x_row_stride = 0, x_head_stride = 0;  ///< in floats
  float* out = nullptr;
  int64_t out_row_stride = 0, out_head_stride = 0;  ///< in floats
};

/// Rotates dims [offset, offset + rotary) of every head of x[rows, heads, head_dim] in place.
/// Pairs are (i, i + rotary/2), or (2i, 2i + 1) when interleaved. cos, sin: [rows, rotary/2], magnitude scaling
/// included.
struct RopeArgs {
  int64_t rows = 0;
  int heads = 0, head_dim = 0, offset = 0, rotary = 0;
  int64_t row_stride = 0;  ///< floats from one row to the next
  bool interleaved = false;
  const float* cos = nullptr;
  const float* sin = nullptr;
  float* x = nullptr;
};

enum class KvType : uint8_t { kF32, kF16, kBF16 };
inline int kv_type_bytes(KvType t) { return t == KvType::kF32 ? 4 : 2; }

/// One layer's share of the block pool. K: [blocks, block_tokens, kv_heads, k_dim]; V likewise with v_dim.
/// Latent layouts keep no V: the value is the first v_dim elements of the key (v is null).
struct KvView {
  KvType type = KvType::kF32;
  int block_tokens = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
};

/// Rows of a ragged batch: prefill chunks and decode rows of several sequences, each row a token.
struct BatchView {
  int64_t rows = 0;
  const int32_t* position = nullptr;     ///< [rows] index of the token in its sequence
  const int32_t* sequence = nullptr;     ///< [rows] row of block_table
  const int32_t* block_table = nullptr;  ///< [sequences, max_blocks] block ids; -1 for blocks released behind a window
  int max_blocks = 0;
  int64_t reach = 0;          ///< no row's position is this or more; 0: unknown
  bool one_row_each = false;  ///< known: no two rows are of one sequence
  bool settled = false;       ///< known: what is named here was written before the last op but one, keys of earlier
                              ///< rows too
};

/// Writes keys and values of the batch's rows to their places. k: [rows, kv_heads, k_dim], v: [rows, kv_heads, v_dim]
/// or null.
struct StoreKvArgs {
  KvView kv;
  BatchView batch;
  const float* k = nullptr;
  const float* v = nullptr;
};

/// out[rows, heads, v_dim] = softmax(scale * q k^T, sinks) v over the cached positions p with p <= position and, if
/// window > 0, p > position - window. sinks[heads]: an extra logit a head, without a value (gpt-oss).
struct AttentionArgs {
  KvView kv;
  BatchView batch;
  int heads = 0;
  int window = 0;
  float scale = 1.f;
  const float* sinks = nullptr;
  const float* q = nullptr;  ///< [rows, heads, k_dim]
  float* out = nullptr;
};

enum class RouterScore : uint8_t {
  kSoftmax,           ///< softmax over all experts, then top-k
  kSigmoid,           ///< sigmoid scores, a bias may select (DeepSeek-V3, GLM-4-MoE)
  kSoftmaxAfterTopK,  ///< top-k of the logits, softmax over the chosen (gpt-oss, Granite)
  kSparsemixer        ///< Phi-MoE: two masked argmax rounds, see model/ for the formula
};
enum class GroupScore : uint8_t { kMax, kSumOfTop2 };
/// Chooses top_k of experts for every row. ids and weights in routing-rank order (best first; ties: lower id first).
/// The selection bias decides, it never enters the weights.
struct RouterArgs {
  RouterScore score = RouterScore::kSoftmax;
  int64_t rows = 0;
  int experts = 0, top_k = 0;
  const float* logits = nullptr;          ///< [rows, experts], router bias included
  const float* selection_bias = nullptr;  ///< [experts] or null
  int groups = 1,
      top_groups = 1;  ///< group-limited routing if groups > 1: experts outside the best groups are masked with -inf
  GroupScore group_score = GroupScore::kMax;
  bool renormalise = false;  ///< weights divided by their sum (plus renormalise_eps)
  float renormalise_eps = 0.f;
  float scale = 1.f;         ///< factor on the weights, after renormalisation
  float jitter_eps = 0.01f;  ///< sparsemixer's threshold (router_jitter_noise)
  int32_t* ids = nullptr;    ///< [rows, top_k]
  float* weights = nullptr;  ///< [rows, top_k]
};

enum class ActivationKind : uint8_t {
  kSilu,  ///< silu(gate) * up
  kGelu,  ///< gelu_erf(gate) * up
  kGeluTanh,
  kClampedSwiglu  ///< gpt-oss: g = min(gate, limit), u = clamp(up, +-limit): (u + 1) * g * sigmoid(alpha * g)
};
struct Activation {
  ActivationKind kind = ActivationKind::kSilu;
  float alpha = 1.702f, limit = 7.f;  ///< kClampedSwiglu
};
/// out[n] = act(gate[n], up[n]); out may be gate.
struct ActivationArgs {
  Activation activation;
  int64_t n = 0;
  const float* gate = nullptr;
  const float* up = nullptr;
  float* out = nullptr;
};

/// An expert's weights where they lie (a slot): gate and up [ffn, hidden], down [hidden, ffn]; biases may be null.
struct ExpertView {
  MatrixView gate, up, down;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
};
/// The assignments that one expert serves. Assignment a = row * top_k + rank.
struct ExpertGroup {
  ExpertView expert;
  std::span<const int32_t> assignments;
};
/// out[a] = down(act(gate(x[a / top_k]), up(x[a / top_k]))) for every assignment of every group; other rows of out
/// untouched.
struct ExpertsArgs {
  Activation activation;
  int64_t hidden = 0, ffn = 0;
  int top_k = 0;
  std::span<const ExpertGroup> groups;
  const float* x = nullptr;  ///< [rows, hidden]
  float* out = nullptr;      ///< [rows * top_k, hidden]
};
/// out[row] = sum over ranks, in rank order, of weights[row, rank] * expert_out[row * top_k + rank].
struct CombineArgs {
  int64_t rows = 0, hidden = 0;
  int top_k = 0;
  const float* expert_out = nullptr;
  const float* weights = nullptr;
  float* out = nullptr;
};

// Compositions: what the ops above give one after the other. A backend may do each as a whole, faster, and with sums in
// another order.

/// One of the products that share their input.
struct LinearOut {
  MatrixView w;
  const float* bias = nullptr;  ///< [w.rows] or null
  float* out = nullptr;         ///< [rows, w.rows]
};
/// norm, then linear of its result for each of outs.
struct NormLinearArgs {
  NormArgs norm;
  std::span<const LinearOut> outs;
};
/// add_to += scale * linear; linear.out is scratch.
struct LinearAddArgs {
  LinearArgs linear;
  float* add_to = nullptr;  ///< [rows, w.rows]
  float scale = 1.f;
};
/// out = act(x * gate^T, x * up^T): [rows, gate.rows]. up_out: scratch of that shape.
struct GatedLinearArgs {
  MatrixView gate, up;
  Activation activation;
  int64_t rows = 0;
  const float* x = nullptr;
  float* out = nullptr;
  float* up_out = nullptr;
};
/// norm, the router's product, the choice.
struct NormRouteArgs {
  NormArgs norm;
  MatrixView router;
  const float* bias = nullptr;  ///< [experts] or null
  float* logits = nullptr;      ///< [rows, experts]
  RouterArgs route;             ///< its logits are these
};
/// Norms of heads, clipping, rotary embedding, the rows' keys and values to the cache, attention. q, k and v are the
/// projections, used up by this: [rows, heads, k_dim], [rows, kv_heads, k_dim], [rows, kv_heads, v_dim] or null.
struct AttendArgs {
  AttentionArgs attention;  ///< its q is this one
  float *q = nullptr, *k = nullptr, *v = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  ///< RMS norms, or null; [k_dim], or of all heads at once
  bool norm_whole = false;                           ///< the latter
  float norm_eps = 1e-6f;
  float clip = 0;  ///< afterwards q, k and v are held to +-clip; 0: not
  int rotary = 0;  ///< of every head's first dims; 0: none
  bool interleaved = false;
  const float *cos = nullptr, *sin = nullptr;  ///< [rows, rotary / 2]
};
/// The routed experts of a layer, all in memory, chosen by ids that only the device has seen: out[row] = sum over
/// ranks, in rank order, of weights[row, rank] * expert(x[row]). With add_to: add_to += add_scale * that instead.
struct RoutedExpertsArgs {
  Activation activation;
  int64_t rows = 0, hidden = 0, ffn = 0;
  int top_k = 0;
  const ExpertView* kind = nullptr;  ///< any of the experts: formats and shapes are those of all
  int experts = 0;
  const std::byte* table = nullptr;  ///< made by expert_table()
  const int32_t* ids = nullptr;      ///< [rows, top_k]
  const float* weights = nullptr;    ///< [rows, top_k]
  const float* x = nullptr;          ///< [rows, hidden]
  float* out = nullptr;              ///< [rows, hidden]
  float* add_to = nullptr;
  float add_scale = 1.f;
};

/// A layer of grouped-query attention and routed experts, in this order: norm_linear of q, k and v, attend, linear_add
/// of o, norm_route, routed_experts. All normalise and add to the same x.
struct LayerArgs {
  NormArgs norm;
  LinearOut q, k, v;
  AttendArgs attend;
  LinearAddArgs o;
  NormRouteArgs route;
  RoutedExpertsArgs experts;
};

/// The `top` largest of each row, falling; among equals the lower index first. NaN stands above all.
struct TopArgs {
  int64_t rows = 0, width = 0;
  int top = 0;               ///< at most width, and most_top()
  const float* x = nullptr;  ///< [rows, width]
  int32_t* ids = nullptr;    ///< [rows, top]
  float* values = nullptr;   ///< [rows, top]
};

enum class Op : uint8_t {
  kEmbed,
  kNorm,
  kLinear,
  kHeadLinear,
  kRope,
  kStoreKv,
  kAttention,
  kRoute,
  kActivation,
  kExperts,
  kCombine,
  kAddScaled,
  kGatedAdd,
  kScale,
  kClamp,
  kCopy2d
};

/// What a backend that has every op computes with: numbers of any kind where weights go in, F32, F16 and BF16 in the KV
/// cache, float32 elsewhere.
bool op_takes(Op op, Format format);

class Backend : public MemoryOwner {
 public:
  virtual std::string_view name() const = 0;    ///< "cpu", "cuda:0"
  virtual std::string description() const = 0;  ///< for logs: instruction set and threads, or the device's name
  /// Whether the host may read and write the backend's memory directly.
  virtual bool memory_is_host() const = 0;
  /// Refused at load, not in the loop: an op on a format that this returns false for.
  virtual bool supports(Op op, Format format) const = 0;

  /// How the op wants the weights of that format to lie. linear and experts take both layouts where tiles are the
  /// answer; embed takes any; head_linear rows only.
  virtual MatrixLayout weight_layout(Op, Format) const { return MatrixLayout::kRows; }

  /// From the regions, where there are any, else apart. DeviceError with the sizes if that much is not to be had.
  Buffer allocate(uint64_t bytes, const MemoryUse& use = {});
  /// Memory of its own, whatever the regions say.
  virtual Buffer allocate_apart(uint64_t bytes) = 0;
  /// Not owned; null: none.
  void set_regions(MemoryRegions* regions) { regions_ = regions; }
  virtual std::unique_ptr<Stream> make_stream() = 0;
  /// In stream order. The host's bytes may be reused once the stream has been synchronised.
  virtual void copy_to_device(void* device, const void* host, uint64_t bytes, Stream& stream) = 0;
  virtual void copy_to_host(void* host, const void* device, uint64_t bytes, Stream& stream) = 0;

  /// Memory of the host that copies to and from the device are fast with.
  virtual std::shared_ptr<std::byte> allocate_host(uint64_t bytes);

  /// out[n, table.cols] = scale * table[ids[i]]
  virtual void embed(Stream&, const MatrixView& table, const TokenId* ids, int64_t n, float scale, float* out) = 0;
  virtual void norm(Stream&, const NormArgs&) = 0;
  virtual void linear(Stream&, const LinearArgs&) = 0;
  virtual void head_linear(Stream&, const HeadLinearArgs&) = 0;
  virtual void rope(Stream&, const RopeArgs&) = 0;
  virtual void store_kv(Stream&, const StoreKvArgs&) = 0;
  virtual void attention(Stream&, const AttentionArgs&) = 0;
  virtual void route(Stream&, const RouterArgs&) = 0;
  virtual void activation(Stream&, const ActivationArgs&) = 0;
  virtual void experts(Stream&, const ExpertsArgs&) = 0;
  virtual void combine(Stream&, const CombineArgs&) = 0;
  virtual void add_scaled(Stream&, float* x, const float* y, float scale, int64_t n) = 0;  ///< x += scale * y
  /// x[row] += sigmoid(gate[row]) * y[row]  (Qwen2-MoE's shared expert)
  virtual void gated_add(Stream&, float* x, const float* y, const float* gate, int64_t rows, int64_t width) = 0;
  virtual void scale(Stream&, float* x, float factor, int64_t n) = 0;
  virtual void clamp(Stream&, float* x, float low, float high, int64_t n) = 0;
  /// dst[r * dst_stride + i] = src[r * src_stride + i] for r < rows, i < width (strides in floats)
  virtual void copy_2d(Stream&, float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t width,
                       int64_t rows) = 0;

  // Compositions; composed.cpp makes them of the ops above.
  virtual void norm_linear(Stream&, const NormLinearArgs&);
  virtual void linear_add(Stream&, const LinearAddArgs&);
  virtual void gated_linear(Stream&, const GatedLinearArgs&);
  virtual void norm_route(Stream&, const NormRouteArgs&);
  virtual void attend(Stream&, const AttendArgs&);
  /// Whether routed_experts() can serve experts of this kind; where not, the host has to see the choices (experts()).
  virtual bool routes_on_device(const ExpertView& /*kind*/) const { return false; }
  /// What routed_experts() knows a layer's experts by.
  virtual Buffer expert_table(std::span<const ExpertView>, Stream&);
  virtual void routed_experts(Stream&, const RoutedExpertsArgs&);

  /// Layers one after the other. Where the backend takes them as a whole, only x and the KV cache are defined
  /// afterwards, not what the ops hand on (projections, logits, choices). most_layer_rows(): steps with more rows need
  /// not be asked about.
  virtual int64_t most_layer_rows() const { return 0; }
  virtual bool takes_layers(std::span<const LayerArgs>) const { return false; }
  virtual void layers(Stream&, std::span<const LayerArgs>);

  /// How many of the largest logits top() finds; 0 where it pays to hand all logits to the host.
  virtual int most_top() const { return 0; }
  virtual void top(Stream&, const TopArgs&);

  /// Measures which way is fastest for shapes that are about to be run, where a backend has a choice; `file` keeps the
  /// answers of this machine. rows: as many as the arguments have room for; x holds numbers, results are scratch.
  /// Returns how many shapes were measured, for the log.
  virtual int tune(Stream&, std::span<const LinearArgs>, std::span<const RoutedExpertsArgs>,
                   const std::filesystem::path& /*file*/) {
    return 0;
  }

 private:
  MemoryRegions* regions_ = nullptr;
};

}  // namespace ef
