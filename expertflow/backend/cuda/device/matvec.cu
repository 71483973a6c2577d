// How tiles are cut for a shape, and the launchers of matvec, gated_matvec and route_linear.
#include "matvec_kernel.cuh"
#include "single.cuh"

namespace ef::cuda {
namespace {

struct FormatSize {
  int elements, bytes;
};
template <class F>
constexpr FormatSize size_of() {
  return {F::kElements, F::kBytes};
}
constexpr FormatSize kSizes[] = {size_of<F32>(),   size_of<F16>(),  size_of<BF16>(), size_of<F8>(),   size_of<Q8_0>(),
                                 size_of<Q4_0>(),  size_of<Q4_1>(), size_of<Q5_0>(), size_of<Q5_1>(), size_of<Q2K>(),
                                 size_of<Q3K>(),   size_of<Q4K>(),  size_of<Q5K>(),  size_of<Q6K>(),  size_of<IQ4NL>(),
                                 size_of<IQ4XS>(), size_of<MXFP4>()};
static_assert(sizeof(kSizes) / sizeof(kSizes[0]) == size_t(Fmt::kCount));

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// In instructions, about: a tile's overhead, and what 32 lanes do once. Only their ratio matters.
constexpr int kTileCost = 100, kStepCost = 80;
// Of a segment: long enough to be worth a tile's overhead, short enough for several slots.
constexpr int kSegmentBytes = 2400, kFloatTileBytes = 2048;
// A tile of 768 columns of the widest format.
constexpr int kMostTileBytes = 8 << 10;

// Tiles of tile_rows rows, in `least` or more segments of whole blocks that begin at multiples of 256 elements.
Plan plan_of(const Work& work, Fmt format, int tile_rows, int least) {
  Plan p;
  p.format = format;
  p.row_bytes = int(row_bytes_of(format, work.cols));
  p.tile_rows = tile_rows;
  // What all lanes of a warp take at once.
  const int64_t unit = work.integers ? int64_t(kLanes) * piece_elements(format) : 256;
  const int64_t units = ceil_div(work.cols, unit);
  const int64_t most = work.integers ? kSegmentBytes : kFloatTileBytes / tile_rows;
  const bool whole = work.integers && tile_rows > 1;
  const int64_t most_units = whole ? units : std::max<int64_t>(1, most / row_bytes_of(format, unit));
  const int64_t segments = std::max<int64_t>(ceil_div(units, most_units), std::min<int64_t>(least, units));
  p.segment_elements = int(std::min(work.cols, ceil_div(units, segments) * unit));
  p.segments = int(ceil_div(work.cols, p.segment_elements));
  p.segment_bytes = int(row_bytes_of(format, p.segment_elements));
  p.row_room = p.segments == 1 ? p.row_bytes : round_up_to(p.segment_bytes + 15, 16) + 16;
  return p;
}

// With what lies before the first byte, and the word that is read behind the last.
int slot_bytes_of(const Plan& p) { return int(sizeof(TileHead)) + round_up_to(p.tile_rows * p.row_room + 15, 16) + 16; }

struct Candidate {
  Plan plan[3];
  int slot_bytes = 0, split = 1;
  int64_t slots = 0;  // that a warp goes through
  int64_t cost = 0;
};

Candidate candidate(const Work& work, int tile_rows, int warps, int split) {
  Candidate c;
  int64_t tiles = 0, segments = 1;
  c.split = split;
  for (int i = 0; i < work.count; ++i) {
    const Plan& p = c.plan[i] = plan_of(work, work.format[i], tile_rows, split);
    c.split = std::min(c.split, p.segments);
    c.slot_bytes = std::max(c.slot_bytes, slot_bytes_of(p));
    segments = std::max<int64_t>(segments, p.segments);
    tiles += ceil_div(work.share[i], tile_rows) * work.repeats;
  }
  while (c.split & (c.split - 1)) c.split &= c.split - 1;  // a power of two, as the warps are
  for (int i = 0; i < work.count; ++i) {
    const int64_t lanes = work.integers ? kLanes / tile_rows : kLanes;
    const int64_t pieces = ceil_div(work.cols, work.integers ? piece_elements(work.format[i]) : 8);
    const int64_t of_tile =
        ceil_div(c.plan[i].segments, c.split) * kTileCost + ceil_div(pieces, lanes * c.split) * kStepCost;
    c.cost = std::max(c.cost, of_tile);
  }
  // Pairs keep their two tiles at one warp.
  const int64_t at_once = warps / c.split;
  const int64_t rounds = std::max<int64_t>(1, work.pairs ? ceil_div(tiles / 2, at_once) * 2 : ceil_div(tiles, at_once));
  c.slots = rounds * ceil_div(segments, c.split);
  c.cost = c.cost * rounds + (c.split > 1 ? kTileCost : 0);
  if (c.split > 1 && rounds > (work.pairs ? 2 : 1)) c.cost = -1;
  return c;
}

// The best for rings of that many bytes in all, or none.
bool best(const Work& work, int warps, int64_t ring_bytes, Candidate& out, int& depth) {
  bool found = false;
  const int only = work.rows <= 2 ? MeetF32<1>::kTileRows : MeetF32<8>::kTileRows;
  for (int tile_rows = 1; tile_rows <= 8; tile_rows *= 2) {
    if (work.integers ? kLanes / tile_rows < work.rows : tile_rows != only) continue;
    for (int split = 1; split <= warps; split *= 2) {
      const Candidate c = candidate(work, tile_rows, warps, split);
      if (c.cost < 0 || c.split != split) break;
      const int64_t most = ring_bytes / (int64_t(warps) * c.slot_bytes);
      const int64_t wanted = std::min<int64_t>(c.slots, kMostDepth);
      if (most < std::min<int64_t>(wanted, 2) || c.slot_bytes > kMostTileBytes) continue;
      if (found && c.cost >= out.cost) continue;
      found = true, out = c, depth = int(std::min(wanted, most));
    }
  }
  return found;
}

}  // namespace

int64_t row_bytes_of(Fmt format, int64_t cols) {
  const FormatSize size = kSizes[int(format)];
  return cols / size.elements * size.bytes;
}

bool cut(const Work& work, Cut& out) {
  const int64_t most_cols = 1 << 28;
  if (work.cols <= 0 || work.cols > most_cols) return false;
  const int cols = int(work.cols);
  const int64_t matrices = round_up_to(int(sizeof(MatrixShare)) * work.count * work.repeats, 16);
  const int64_t partials = int64_t(sizeof(float)) * kMostWarps * kMostSums * (work.pairs ? 2 : 1);
  const int64_t x_row = work.integers ? QuantizedRows::row_bytes(cols) : FloatRows::row_bytes(cols);
  const int64_t rows_at = matrices + partials + round_up_to(int(work.extra_bytes), 16);
  const int64_t fixed = rows_at + work.x_rows * x_row;
  const int64_t whole = device_traits().shared_bytes;
  // Where registers let two blocks share a multiprocessor, memory should: the next kernel starts beside this one.
  constexpr int64_t kOfSystem = 1 << 10;
  const int64_t half = work.rows <= 2 ? whole / 2 - kOfSystem : whole;
  for (int warps = work.most_warps; warps >= 4; warps /= 2) {
    for (const int64_t bytes : {half, whole}) {
      Candidate c;
      int depth = 0;
      if (bytes <= fixed || !best(work, warps, bytes - fixed, c, depth)) continue;
      for (int i = 0; i < work.count; ++i) out.plan[i] = c.plan[i];
      out.layout.cols = cols;
      out.layout.depth = depth, out.layout.slot_bytes = c.slot_bytes, out.layout.split = c.split;
      out.layout.partial_at = int(matrices);
      out.layout.extra_at = int(matrices + partials);
      out.layout.rows_at = int(rows_at);
      out.layout.ring_at = int(fixed);
      out.warps = warps;
      out.shared_bytes =
          size_t(fixed + std::max<int64_t>(int64_t(warps) * depth * c.slot_bytes, int64_t(work.least_bytes)));
      if (int64_t(out.shared_bytes) > whole) continue;
      return true;
    }
  }
  return false;
}

namespace {

// As many blocks as multiprocessors, or fewer where there is too little to do.
unsigned blocks_for(int64_t outputs) {
  return unsigned(std::max<int64_t>(1, std::min<int64_t>(std::max(1, device_traits().multiprocessors), outputs)));
}

// run(job, rows before these, shape) with job.rows rows at once, or fewer if shared memory asks for that.
// behind(rows): what of it the kernel needs behind the rows of activations.
template <class Behind, class RunPart>
cudaError_t in_parts(MatvecJob job, bool integers, bool pairs, Behind behind, RunPart run) {
  const int rows = job.rows;
  int64_t outputs = 0;
  for (int i = 0; i < job.count; ++i) outputs += job.product[i].n;
  const unsigned blocks = blocks_for(pairs ? outputs / 2 : outputs);
  Work work;
  work.integers = integers, work.pairs = pairs;
  work.cols = job.layout.cols, work.count = job.count;
  for (int i = 0; i < job.count; ++i)
    work.format[i] = job.product[i].format, work.share[i] = ceil_div(job.product[i].n, blocks);
  Cut c;
  for (int most = padded_rows(rows); most > 0; most /= 2) {
    work.rows = work.x_rows = most;
    work.least_bytes = behind(most);
    if (!cut(work, c)) continue;
    job.layout = c.layout;
    for (int i = 0; i < job.count; ++i) job.plan[i] = c.plan[i];
    const Shape shape{blocks, unsigned(kLanes * c.warps), c.shared_bytes, Start::kEarly};
    for (int first = 0; first < rows; first += most) {
      MatvecJob part = job;
      part.rows = std::min(most, rows - first);
      part.in.x += first * job.in.stride;
      if (part.in.normed) part.in.normed += first * work.cols;
      if (part.add_to) part.add_to += first * job.product[0].n;
      for (Product& p : part.product)
        if (p.out) p.out += first * p.n;
      const cudaError_t error = run(part, first, shape);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
const auto kNothingBehind = [](int) { return uint64_t(0); };

}  // namespace

cudaError_t matvec(const MatvecParams& p, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  if (p.rows > kMatvecRows || p.count < 1 || p.count > 3 || (p.add_to && p.count != 1)) return cudaErrorInvalidValue;
  if (single_matvec_takes(p)) return single_matvec(p, stream);
  MatvecJob job;
  job.layout.cols = int(p.cols);
  job.in = p.in, job.rows = p.rows;
  job.add_to = p.add_to, job.add_scale = p.add_scale;
  for (const bool integers : {true, false}) {
    job.count = 0;
    for (int i = 0; i < p.count; ++i)
      if (in_integers(p.meet, p.product[i].format) == integers) job.product[job.count++] = p.product[i];
    if (job.count == 0) continue;
    const auto run = [&](const MatvecJob& part, int, const Shape& shape) {
      return (integers ? matvec_integers : matvec_floats)(part, shape, stream);
    };
    const cudaError_t error = in_parts(job, integers, false, kNothingBehind, run);
    if (error != cudaSuccess) return error;
    job.in.normed = nullptr;  // written by now
  }
  return cudaSuccess;
}

cudaError_t gated_matvec(const GatedParams& p, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  if (p.rows > kMatvecRows) return cudaErrorInvalidValue;
  MatvecJob job;
  job.layout.cols = int(p.cols);
  job.in = p.in, job.rows = p.rows, job.count = 2;
  job.product[0] = {p.gate_format, p.gate, p.n, p.out};
  job.product[1] = {p.up_format, p.up, p.n, p.out};
  job.activation = p.activation;
  // Both meet the same rows of activations.
  const bool integers = in_integers(p.meet, p.gate_format) && in_integers(p.meet, p.up_format);
  return in_parts(job, integers, true, kNothingBehind, [&](const MatvecJob& part, int, const Shape& shape) {
    return (integers ? gated_integers : gated_floats)(part, shape, stream);
  });
}

cudaError_t route_linear(const RouteLinearParams& p, cudaStream_t stream) {
  if (p.route.rows <= 0) return cudaSuccess;
  if (p.route.rows > kMatvecRows) return cudaErrorInvalidValue;
  MatvecJob job;
  job.layout.cols = int(p.cols);
  job.in = p.in, job.rows = int(p.route.rows), job.count = 1;
  job.product[0] = {p.format, p.router, p.route.experts, p.logits};
  const auto space = [&](int rows) { return uint64_t(route_space(p.route, rows)); };
  return in_parts(job, false, false, space, [&](const MatvecJob& part, int first, const Shape& shape) {
    RouteParams route = p.route;
    route.rows = part.rows, route.logits = part.product[0].out;
    route.ids += first * route.top_k, route.weights += first * route.top_k;
    return route_floats(part, route, p.arrived, shape, stream);
  });
}

}  // namespace ef::cuda
