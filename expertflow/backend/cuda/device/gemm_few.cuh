// Products of up to 32 rows on tensor cores: memory decides, so the weights are the wide side of a fragment and every
// warp streams its own. A block has 16 or 32 outputs of a tile; its warps share the width, each a run of units (some
// steps of gemm.cuh), and their sums join in the order of the warps. A warp copies its units to shared memory by
// itself, some ahead; a lane then reads an octet of every 32 columns of two rows, as in gemm.cuh, and the same octets
// of its rows of activations, which lie in their natural order (NarrowRows::natural) and come straight from memory.
#pragma once
#include "activate.cuh"
#include "formats.cuh"
#include "gemm_task.cuh"
#include "halves.cuh"
#include "mma.cuh"

namespace ef::cuda {

template <int kEights>
constexpr int kMostSplit = kEights == 1 ? 4 : 8;  // warps of a block
template <int kEights>
constexpr int kLeastBlocks = kEights == 1   ? 4
                             : kEights == 2 ? 2
                                            : 1;  // that a multiprocessor is to hold

/// A row of weights that a lane holds in a fragment.
struct WeightRow {
  const uint8_t* data;
  const float* scales;
};
/// The same where a unit of it lies in shared memory.
struct SharedRow {
  SharedBytes data;
  const float* scales;
};

template <class F>
struct Piece;

/// For formats whose weights are a code times a scale plus an offset, the two alike for 32 columns: products are made
/// of codes, which halves hold exactly and cheaply, and scale and offset meet the sums in float32. A row's in a unit:
/// begin() and load() (for a step) read them, get() gives those of group g of the step; all lanes call them.
template <class F>
struct Codes {
  static constexpr bool kExist = false;
};

// Outputs of a block for tiles of up to 8 * kEights rows: more where that bounds arithmetic and registers allow it,
// since what is done once a unit, and loads of activations, then serve more weights.
template <class F, int kEights>
constexpr int kFewOutputs = Codes<F>::kExist&& kEights == 1 ? 32 : 16;

/// What a warp copies of each of its rows at once. What super-blocks' pieces hand from step to step ends with a unit.
template <class F, int kOutputs>
struct FewUnit {
  static constexpr int kSteps = F::kElements > 1 ? 4 : F::kBytes > 2 ? 1 : 2;
  static constexpr int kColumns = kSteps * kStepColumns;
  static constexpr int kBytes = kColumns / F::kElements * F::kBytes;
  static constexpr int kChunks = (15 + kBytes + 15) / 16;  ///< of 16 bytes, from any address on
  /// From row to row: an odd number of chunks, or of pairs of them, so that rows begin in different banks.
  static constexpr int kRoom = 16 * (kChunks % 4 == 2 ? kChunks : kChunks | 1);
  static constexpr int kSlot = kOutputs * kRoom;
  static constexpr int kDepth = kOutputs > 16 ? 2 : kSlot <= 4096 ? 4 : 3;
  /// Whether all rows' units lie alike against 16 bytes: widths are multiples of 256 then.
  static constexpr bool kAlike = kBytes % 16 == 0 && F::kElements == 256;
};

// kEights: a tile has up to 8 * kEights rows.
template <class F, int kEights>
__global__ void __launch_bounds__(32 * kMostSplit<kEights>, kLeastBlocks<kEights>) gemm_few_kernel(const GemmTask p) {
  using P = Piece<F>;
  constexpr int kOutputs = kFewOutputs<F, kEights>, kWide = kOutputs / 16, kMine = kOutputs / 8;
  using U = FewUnit<F, kOutputs>;
  constexpr int kPartStride = kOutputs + 1;
  static_assert(8 * kEights * kPartStride * sizeof(float) <= U::kDepth * U::kSlot);
  EF_DYNAMIC_SHARED(uint8_t, memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = blockDim.x / 32, t = lane % 4, r = lane / 4;
  uint8_t* const ring = memory + warp * U::kDepth * U::kSlot;
  // Weights alone are safe before earlier kernels have ended; with tiles, these say which, unless they are settled.
  const bool early = !p.tiles || p.settled;
  if (!early) {
    if (blockIdx.x == 0 && blockIdx.y == 0) ask_for(p.table, int64_t(sizeof(ExpertEntry)) * p.experts);
    wait_for_earlier();
  }
  let_later_start();  // with tiles not before: what comes behind may take them as settled

  const GemmBlock block(p);
  const Tile& tile = block.tile;
  if (tile.rows == 0) {
    if (early) wait_for_earlier();
    return;
  }
  const GemmPart& part = p.part[block.index];
  const Weights w = block.weights(p);
  // With pairs, the second half of a block's outputs are those of up for the neurons of the first.
  const bool pairs = kWide == 2 && p.pairs;
  const int outputs = pairs ? kOutputs / 2 : kOutputs;
  const Weights second = pairs ? p.table[tile.group].up : w;
  const int64_t first_out = int64_t(int(blockIdx.x) - part.first_block) * outputs;
  const int64_t row_bytes = row_bytes_of<F>(p.cols);
  const int last_row = int(min(int64_t(outputs), part.n - first_out)) - 1;
  // Row i of the block's; in place of those that are missing, the last one.
  const auto row_at = [&](int i) {
    const bool of_second = pairs && i >= outputs;
    return (of_second ? second.data : w.data) + (first_out + min(of_second ? i - outputs : i, last_row)) * row_bytes;
  };

  const int units = (p.steps + U::kSteps - 1) / U::kSteps;
  const int begin = units * warp / split, end = units * (warp + 1) / split;
  // Four lanes copy a row, eight rows at a time.
  const int first = 16 * (lane % 4);
  const uint8_t* copied[kMine];
#pragma unroll
  for (int k = 0; k < kMine; ++k) copied[k] = row_at(8 * k + lane / 4) + int64_t(begin) * U::kBytes;
  uint8_t* const copy_to = ring + lane / 4 * U::kRoom + first;
  const auto copy = [&](int unit, int slot) {
    if (unit < end) {
      const int bytes = U::kAlike ? U::kBytes : int(min(int64_t(U::kBytes), row_bytes - int64_t(unit) * U::kBytes));
#pragma unroll
      for (int k = 0; k < kMine; ++k) {
        const int past = int(address_of(copied[U::kAlike ? k / (kMine / kWide) * (kMine / kWide) : k]) % 16),
                  left = past + bytes - first;
        const uint8_t* from = copied[k] + first - past;
        uint8_t* to = copy_to + slot * U::kSlot + 8 * k * U::kRoom;
#pragma unroll
        for (int c = 0; c < 16 * U::kChunks; c += 64)
          if ((U::kAlike && c + 64 <= U::kBytes) || c < left) copy16_async(to + c, from + c, true);
        copied[k] += U::kBytes;
      }
    }
    copy_async_commit();
  };
  for (int i = 0; i < U::kDepth - 1; ++i) copy(begin + i, i);

  int past[kMine];
  int64_t scale_row[kMine];
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    const int n = min(8 * j + r, last_row);
    past[j] = int(address_of(row_at(8 * j + r) + int64_t(begin) * U::kBytes) % 16);
    scale_row[j] = (first_out + n) / 128 * ((p.cols + 127) / 128);
  }
  if (early) wait_for_earlier();
  // Rows beyond the tile's are computed and not stored.
  const uint4* x[kEights];
#pragma unroll
  for (int e = 0; e < kEights; ++e) x[e] = p.x + x_row_at(p, tile, 8 * e + r) * p.chunks + t;
  constexpr float kUnlift = Codes<F>::kExist ? 1.f : 1.f / float(1 << P::kLift);
  float factor[kEights][2];  // of the rows whose sums this lane will hold
#pragma unroll
  for (int e = 0; e < kEights; ++e)
#pragma unroll
    for (int i = 0; i < 2; ++i) factor[e][i] = p.factor[x_row_at(p, tile, 8 * e + 2 * t + i)] * kUnlift;
  const auto out_row_of = [&](int at) {
    const int64_t place = int64_t(tile.first) + at;
    return p.out_row ? int64_t(p.out_row[place]) : place;
  };
  const int64_t my_row = int(threadIdx.x) / outputs < tile.rows ? out_row_of(int(threadIdx.x) / outputs) : 0;
  // They come some steps before they are multiplied: from the L2, and late, if not. Whose turn it is, unrolled steps
  // know.
  constexpr int kAhead = kEights > 1 || U::kSteps < 4 ? 1 : 3, kTurns = kAhead + 1;
  static_assert(U::kSteps % kTurns == 0 || U::kSteps == 1);
  uint4 of_x[kTurns][2][kEights];
  const auto load_x = [&](int first_step, int step, uint4(&to)[2][kEights]) {
    if (first_step + step >= p.steps) return;
#pragma unroll
    for (int g = 0; g < 2; ++g)
#pragma unroll
      for (int e = 0; e < kEights; ++e) to[g][e] = x[e][4 * P::group(first_step, 0) + 4 * P::group(step, g)];
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_x(begin * U::kSteps, i, of_x[i]);

  float sum[kWide][kEights][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit) {
    copy_async_wait<U::kDepth - 2>();
    __syncwarp();  // the unit is there for all lanes, and all have left the slot that is filled next
    copy(unit + U::kDepth - 1, slot == 0 ? U::kDepth - 1 : slot - 1);
    SharedRow row[kMine];
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      row[j].data = {ring + slot * U::kSlot + (8 * j + r) * U::kRoom + past[j]};
      row[j].scales = w.scales ? w.scales + scale_row[j] + unit * U::kColumns / 128 : nullptr;
      past[j] = (past[j] + U::kBytes) % 16;
    }
    P now[kMine];
    Codes<F> codes[kMine];
    if constexpr (Codes<F>::kExist) {
#pragma unroll
      for (int j = 0; j < kMine; ++j) codes[j].begin(row[j].data, t);
    }
#pragma unroll
    for (int s = 0; s < U::kSteps; ++s) {
      const int step = unit * U::kSteps + s;
      if (step >= p.steps) break;
      uint4(&now_x)[2][kEights] = of_x[s % kTurns];
      load_x(unit * U::kSteps, s + kAhead, of_x[(s + kAhead) % kTurns]);
      if constexpr (Codes<F>::kExist) {
#pragma unroll
        for (int j = 0; j < kMine; ++j) codes[j].load(row[j].data, s, t);
      } else {
#pragma unroll
        for (int j = 0; j < kMine; ++j) {
          P piece;
          piece.load(row[j], s, t, p.cols - int64_t(unit) * U::kColumns, now[j]);
          now[j] = piece;
          now[j].prepare(s, t);
        }
      }
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        if constexpr (Codes<F>::kExist) {
          constexpr uint32_t kOnes[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
          float x_sum[kEights][4];
#pragma unroll
          for (int e = 0; e < kEights; ++e) {
            start_f16(x_sum[e], kOnes, {now_x[g][e].x, now_x[g][e].y});
            mma_f16(x_sum[e], kOnes, {now_x[g][e].z, now_x[g][e].w});
          }
#pragma unroll
          for (int wide = 0; wide < kWide; ++wide) {
            uint32_t a[2][4];
            float scale[2], offset[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) codes[2 * wide + j].get(s, g, a[j], scale[j], offset[j]);
#pragma unroll
            for (int e = 0; e < kEights; ++e) {
              float product[4];
              start_f16(product, {a[0][0], a[1][0], a[0][1], a[1][1]}, {now_x[g][e].x, now_x[g][e].y});
              mma_f16(product, {a[0][2], a[1][2], a[0][3], a[1][3]}, {now_x[g][e].z, now_x[g][e].w});
#pragma unroll
              for (int i = 0; i < 4; ++i)
                sum[wide][e][i] = fmaf(offset[i / 2], x_sum[e][i], fmaf(scale[i / 2], product[i], sum[wide][e][i]));
            }
          }
        } else {
#pragma unroll
          for (int wide = 0; wide < kWide; ++wide) {
            uint32_t a[2][4];
#pragma unroll
            for (int j = 0; j < 2; ++j) now[2 * wide + j].halves(row[2 * wide + j], s, g, t, a[j]);
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const uint32_t both[4] = {a[0][2 * k], a[1][2 * k], a[0][2 * k + 1], a[1][2 * k + 1]};
#pragma unroll
              for (int e = 0; e < kEights; ++e) {
                const uint4& v = now_x[g][e];
                const uint32_t pair[2] = {k ? v.z : v.x, k ? v.w : v.y};
                if constexpr (P::kBrain)
                  mma_bf16(sum[wide][e], both, pair);
                else
                  mma_f16(sum[wide][e], both, pair);
              }
            }
          }
        }
      }
      if constexpr (U::kSteps == 1) {
#pragma unroll
        for (int g = 0; g < 2; ++g)
#pragma unroll
          for (int e = 0; e < kEights; ++e) of_x[0][g][e] = of_x[1][g][e];
      }
    }
    slot = slot + 1 == U::kDepth ? 0 : slot + 1;
  }
  copy_async_wait<0>();
  __syncwarp();

  // A lane holds outputs r and r + 8 of rows 2t and 2t + 1 of every eight.
#pragma unroll
  for (int e = 0; e < kEights; ++e)
#pragma unroll
    for (int i = 0; i < 4 * kWide; ++i)
      reinterpret_cast<float*>(ring)[(8 * e + 2 * t + i % 2) * kPartStride + r + 8 * (i / 2)] =
          sum[i / 4][e][i % 4] * factor[e][i % 2];
  __syncthreads();
  for (int i = threadIdx.x; i < tile.rows * outputs; i += blockDim.x) {
    const int at = i / outputs, out = i % outputs;
    const int64_t n = first_out + out;
    if (n >= part.n) continue;
    const auto result = [&](const Weights& of, int column) {
      float v = 0;
      for (int s = 0; s < split; ++s)
        v += reinterpret_cast<const float*>(memory + s * U::kDepth * U::kSlot)[at * kPartStride + column];
      return v + (of.bias ? of.bias[n] : 0.f);
    };
    float v = result(w, out);
    if (pairs)
      v = activate(p.activation.kind, p.activation.alpha, p.activation.limit, v, result(second, outputs + out));
    float* to = part.out + (i == int(threadIdx.x) ? my_row : out_row_of(at)) * part.out_stride + n;
    *to = p.add ? *to + p.add_scale * v : v;
  }
}

template <class F, int kEights>
cudaError_t launch_gemm_few_rows(GemmTask p, cudaStream_t stream) {
  using U = FewUnit<F, kFewOutputs<F, kEights>>;
  constexpr int kOutputs = kFewOutputs<F, kEights>;
  if (p.pairs && kOutputs < 32) return cudaErrorInvalidValue;
  const int outputs = p.pairs ? kOutputs / 2 : kOutputs;
  place_parts(p, outputs);
  const int64_t tiles = p.tiles ? p.most_tiles : (p.rows + p.tile_rows - 1) / p.tile_rows;
  const int64_t blocks = blocks_of(p, outputs);
  // Warps enough for all of the device, but none with less than a unit.
  constexpr int64_t kWarpsOfProcessor = 16, kLongest = 4;
  const int64_t units = (p.steps + U::kSteps - 1) / U::kSteps;
  const int64_t wanted = (kWarpsOfProcessor * device_traits().multiprocessors + blocks * tiles - 1) / (blocks * tiles);
  constexpr int64_t kWarpBytes = U::kDepth * U::kSlot;
  const int64_t room = max(int64_t(1), device_traits().shared_bytes / kWarpBytes);
  const int64_t most = min(min(units, int64_t(kMostSplit<kEights>)), room);
  // Not more than it takes for the longest of them to be as short: blocks should all be there at once.
  const int64_t longest = (units - 1) / min(max(wanted, (units + kLongest - 1) / kLongest), most) + 1;
  const int64_t split = (units + longest - 1) / longest;
  Shape shape;
  shape.grid = dim3(unsigned(blocks), unsigned(tiles));
  shape.block = unsigned(32 * split);
  shape.shared = size_t(split * kWarpBytes);
  shape.start = Start::kEarly;
  return launch(gemm_few_kernel<F, kEights>, shape, stream, p);
}

template <class F>
cudaError_t launch_gemm_few(const GemmTask& p, cudaStream_t stream) {
  return p.tile_rows <= 8    ? launch_gemm_few_rows<F, 1>(p, stream)
         : p.tile_rows <= 16 ? launch_gemm_few_rows<F, 2>(p, stream)
                             : launch_gemm_few_rows<F, 4>(p, stream);
}

}  // namespace ef::cuda
