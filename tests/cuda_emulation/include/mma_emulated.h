// The instructions of device/mma.cuh, done for the whole warp by the last of its lanes to come. Fragments as PTX
// numbers them; products of 16-bit numbers are exact in float32, sums are float32 in ascending order.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace ef::cuda {

namespace mma_emulated {

constexpr uint32_t kWholeWarp = 0xffffffffu;

struct Rows {
  uint32_t* r;
  const void* row;
};

template <bool kTransposed>
void ldmatrix(uint32_t (&r)[4], const void* row, const char* what, const emulated::Place& where) {
  if (reinterpret_cast<uintptr_t>(row) % 16)
    emulated::stop("a row of ldmatrix is not at a multiple of 16 bytes", where);
  Rows mine{r, row};
  emulated::meet_with(kWholeWarp, what, where, mine, [](Rows* const* lanes) {
    for (int m = 0; m < 4; ++m) {
      const auto element = [&](int i, int j) -> uint32_t {
        return static_cast<const uint16_t*>(lanes[8 * m + i]->row)[j];
      };
      for (int lane = 0; lane < 32; ++lane) {
        const int a = lane / 4, b = lane % 4 * 2;
        lanes[lane]->r[m] =
            kTransposed ? element(b, a) | element(b + 1, a) << 16 : element(a, b) | element(a, b + 1) << 16;
      }
    }
  });
}

struct Fragments {
  float* d;
  const uint32_t *a, *b;
};

// d[16, 8] += a[16, 16] * b[16, 8]. Lane l holds, with g = l / 4 and t = l % 4 * 2: of a rows g and g + 8, columns t
// and t + 1, then the same with columns t + 8; of b rows t, t + 1, then t + 8, t + 9 of column g; of d columns t, t + 1
// of row g, then of row g + 8.
template <float (*kNumber)(uint16_t)>
void multiply(Fragments* const* lanes) {
  float a[16][16], b[16][8], d[16][8];
  const auto half = [](uint32_t word, int i) { return kNumber(uint16_t(word >> (16 * i))); };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    const uint32_t *wa = lanes[lane]->a, *wb = lanes[lane]->b;
    for (int i = 0; i < 2; ++i) {
      a[g][t + i] = half(wa[0], i), a[g + 8][t + i] = half(wa[1], i);
      a[g][t + 8 + i] = half(wa[2], i), a[g + 8][t + 8 + i] = half(wa[3], i);
      b[t + i][g] = half(wb[0], i), b[t + 8 + i][g] = half(wb[1], i);
      d[g][t + i] = lanes[lane]->d[i], d[g + 8][t + i] = lanes[lane]->d[2 + i];
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) lanes[lane]->d[i] = d[g][t + i], lanes[lane]->d[2 + i] = d[g + 8][t + i];
  }
}

}  // namespace mma_emulated

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, emulated::Place where = emulated::Place::current()) {
  mma_emulated::ldmatrix<false>(r, row, "ldmatrix_x4", where);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, emulated::Place where = emulated::Place::current()) {
  mma_emulated::ldmatrix<true>(r, row, "ldmatrix_x4_trans", where);
}

inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                    emulated::Place where = emulated::Place::current()) {
  mma_emulated::Fragments mine{d, a, b};
  emulated::meet_with(mma_emulated::kWholeWarp, "mma_f16", where, mine, [](mma_emulated::Fragments* const* lanes) {
    mma_emulated::multiply<emulated::float_of_half>(lanes);
  });
}
inline void start_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                      emulated::Place where = emulated::Place::current()) {
  for (float& v : d) v = 0;
  mma_f16(d, a, b, where);
}
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     emulated::Place where = emulated::Place::current()) {
  mma_emulated::Fragments mine{d, a, b};
  emulated::meet_with(mma_emulated::kWholeWarp, "mma_bf16", where, mine, [](mma_emulated::Fragments* const* lanes) {
    mma_emulated::multiply<emulated::float_of_bfloat16>(lanes);
  });
}

inline void copy16_async(void* shared, const void* global, bool valid,
                         emulated::Place where = emulated::Place::current()) {
  emulated::copy_later(shared, valid ? global : nullptr, where);
}
inline void copy16_async_where(void* shared, const void* global, bool wanted,
                               emulated::Place where = emulated::Place::current()) {
  if (wanted) emulated::copy_later(shared, global, where);
}
inline void copy_async_commit() { emulated::end_copy_group(); }
template <int kPending>
void copy_async_wait() {
  emulated::wait_for_copies(kPending);
}

}  // namespace ef::cuda
