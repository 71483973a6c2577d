#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>

#include "expertflow/measure/probe.h"

namespace ef {

namespace {

constexpr int64_t kRounds = 20000;
constexpr int kChains = 12;  // independent sums: enough to hide the latency of a multiply-add on two ports

// Each runs kRounds x kChains instructions (or groups of them) and returns something that depends on all.
using Loop = float (*)(float seed);
struct Timed {
  Loop loop = nullptr;
  double operations = 0;  // of one instruction (or group)
};
struct Loops {
  const char* isa;
  Timed blocks, half, f32;
};

#if defined(__x86_64__)

#define EF_CHAINS(Type, init, step) \
  Type sum[kChains];                \
  for (auto& s : sum) s = init;     \
  for (int64_t round = 0; round < kRounds; ++round) _Pragma("GCC unroll 12") for (auto& s : sum) s = step

__attribute__((target("avx2,fma"))) float f32_avx2(float seed) {
  const __m256 x = _mm256_set1_ps(seed), y = _mm256_set1_ps(0.5f);
  EF_CHAINS(__m256, y, _mm256_fmadd_ps(s, y, x));
  for (auto& s : sum) sum[0] = _mm256_add_ps(sum[0], s);
  return _mm256_cvtss_f32(sum[0]);
}
__attribute__((target("avx2"))) float blocks_avx2(float seed) {
  const __m256i x = _mm256_set1_epi8(char(seed)), ones = _mm256_set1_epi16(1);
  EF_CHAINS(__m256i, ones, _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(x, s), ones)));
  for (auto& s : sum) sum[0] = _mm256_add_epi32(sum[0], s);
  return float(_mm256_extract_epi32(sum[0], 0));
}
__attribute__((target("avx2,avxvnni"))) float blocks_avx2_vnni(float seed) {
  const __m256i x = _mm256_set1_epi8(char(seed));
  EF_CHAINS(__m256i, x, _mm256_dpbusd_avx_epi32(s, x, x));
  for (auto& s : sum) sum[0] = _mm256_add_epi32(sum[0], s);
  return float(_mm256_extract_epi32(sum[0], 0));
}
__attribute__((target("avx512f"))) float f32_avx512(float seed) {
  const __m512 x = _mm512_set1_ps(seed), y = _mm512_set1_ps(0.5f);
  EF_CHAINS(__m512, y, _mm512_fmadd_ps(s, y, x));
  for (auto& s : sum) sum[0] = _mm512_add_ps(sum[0], s);
  return _mm512_cvtss_f32(sum[0]);
}
__attribute__((target("avx512f,avx512bw"))) float blocks_avx512(float seed) {
  const __m512i x = _mm512_set1_epi8(char(seed)), ones = _mm512_set1_epi16(1);
  EF_CHAINS(__m512i, ones, _mm512_add_epi32(s, _mm512_madd_epi16(_mm512_maddubs_epi16(x, s), ones)));
  for (auto& s : sum) sum[0] = _mm512_add_epi32(sum[0], s);
  return float(_mm512_cvtsi512_si32(sum[0]));
}
__attribute__((target("avx512f,avx512vnni"))) float blocks_vnni(float seed) {
  const __m512i x = _mm512_set1_epi8(char(seed));
  EF_CHAINS(__m512i, x, _mm512_dpbusd_epi32(s, x, x));
  for (auto& s : sum) sum[0] = _mm512_add_epi32(sum[0], s);
  return float(_mm512_cvtsi512_si32(sum[0]));
}
__attribute__((target("avx512f,avx512bf16"))) float half_bf16(float seed) {
  const __m512bh x = (__m512bh)_mm512_set1_epi16(short(seed));
  EF_CHAINS(__m512, _mm512_set1_ps(seed), _mm512_dpbf16_ps(s, x, x));
  for (auto& s : sum) sum[0] = _mm512_add_ps(sum[0], s);
  return _mm512_cvtss_f32(sum[0]);
}

// Lanes x 2 operations; a dot instruction does 4 (bytes) or 2 (halves) products in each 32-bit lane.
constexpr Loops kLoops[] = {
    {"avx2", {blocks_avx2, 64}, {f32_avx2, 16}, {f32_avx2, 16}},
    {"avx2-vnni", {blocks_avx2_vnni, 64}, {f32_avx2, 16}, {f32_avx2, 16}},
    {"avx512", {blocks_avx512, 128}, {f32_avx512, 32}, {f32_avx512, 32}},
    {"avx512-vnni", {blocks_vnni, 128}, {f32_avx512, 32}, {f32_avx512, 32}},
    {"avx512-bf16", {blocks_vnni, 128}, {half_bf16, 64}, {f32_avx512, 32}},
};
#else
constexpr Loops kLoops[] = {{"", {}, {}, {}}};
#endif

double rate(ThreadPool& pool, const Timed& timed) {
  constexpr int kTries = 4;
  const int64_t pieces = int64_t(pool.size()) * 16;
  std::atomic<float> kept{0};
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(pieces, 1, [&](int64_t, int64_t, int) { kept = timed.loop(1.f); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, double(pieces) * double(kRounds * kChains) * timed.operations / seconds);
  }
  return best;
}

}  // namespace

ComputePeak measure_compute(ThreadPool& pool, const std::string& isa) {
  ComputePeak peak;
  for (const Loops& loops : kLoops) {
    if (isa != loops.isa || !loops.f32.loop) continue;
    peak.blocks = rate(pool, loops.blocks);
    peak.f32 = rate(pool, loops.f32);
    // Halves can be widened: where the processor's own pairs are slower than that, they are no bound.
    peak.half = loops.half.loop == loops.f32.loop ? peak.f32 : std::max(peak.f32, rate(pool, loops.half));
  }
  return peak;
}

double seconds_at_peak(const Operations& operations, const ComputePeak& peak) {
  const double counts[] = {operations.blocks, operations.half, operations.f32};
  const double rates[] = {peak.blocks, peak.half, peak.f32};
  double seconds = 0;
  for (int i = 0; i < 3; ++i) {
    if (counts[i] == 0) continue;
    if (rates[i] == 0) return 0;
    seconds += counts[i] / rates[i];
  }
  return seconds;
}

}  // namespace ef
