#include "cpu/retrieve_vnni.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns of its own avx512fintrin.h (bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#define PSS_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace pss {
namespace {

// vpdpbusd takes one side unsigned: a passage's byte v goes in as v + 128, and 128 * sum(q) is taken off.
constexpr int64_t kFewQueries = 4;
constexpr int64_t kBytes = 64;

// One passage after the other, a register of features at a time: for few queries, where memory is the limit.
template <int Q>
PSS_VNNI void few_queries(const DenseSearch& dense, const PackedQueries& packed, int64_t first, int64_t count,
                          float* scores) {
  const __m512i sign = _mm512_set1_epi8(char(0x80));
  const int64_t dim = dense.dim, padded = (dim + kBytes - 1) / kBytes * kBytes, whole = dim / kBytes * kBytes;
  const __mmask64 rest = (uint64_t(1) << (dim - whole)) - 1;
  for (int64_t i = 0; i < count; ++i) {
    const int8_t* v = static_cast<const int8_t*>(dense.vectors) + (first + i) * dim;
    __m512i sums[Q];
    for (int q = 0; q < Q; ++q) sums[q] = _mm512_setzero_si512();
    for (int64_t h = 0; h < whole; h += kBytes) {
      const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(v + h), sign);
      for (int q = 0; q < Q; ++q)
        sums[q] = _mm512_dpbusd_epi32(sums[q], x, _mm512_loadu_si512(packed.bytes.data() + q * padded + h));
    }
    if (rest) {
      const __m512i x = _mm512_xor_si512(_mm512_maskz_loadu_epi8(rest, v + whole), sign);
      for (int q = 0; q < Q; ++q)
        sums[q] = _mm512_dpbusd_epi32(sums[q], x, _mm512_loadu_si512(packed.bytes.data() + q * padded + whole));
    }
    for (int q = 0; q < Q; ++q)
      scores[i * Q + q] = float(_mm512_reduce_add_epi32(sums[q]) + packed.bias[q]) * dense.scales[first + i];
  }
}

// P passages against B * 16 queries, one a lane.
template <int P, int B>
PSS_VNNI void block(const DenseSearch& dense, const PackedQueries& packed, int64_t first, int64_t lane,
                    float* scores) {
  const __m512i sign = _mm512_set1_epi8(char(0x80));
  const int64_t dim = dense.dim, lanes = packed.lanes, whole = dim / 4 * 4;
  const int8_t* v = static_cast<const int8_t*>(dense.vectors) + first * dim;
  const int8_t* q = packed.bytes.data() + lane * 4;
  __m512i sums[P][B];
  for (int i = 0; i < P; ++i)
    for (int j = 0; j < B; ++j) sums[i][j] = _mm512_loadu_si512(packed.bias.data() + lane + 16 * j);
  const auto step = [&](const int32_t* words, int64_t h) PSS_VNNI {
    __m512i queries[B];
    for (int j = 0; j < B; ++j) queries[j] = _mm512_loadu_si512(q + h * lanes + 64 * j);
    for (int i = 0; i < P; ++i) {
      const __m512i x = _mm512_xor_si512(_mm512_set1_epi32(words[i]), sign);
      for (int j = 0; j < B; ++j) sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], x, queries[j]);
    }
  };
  int32_t words[P];
  for (int64_t h = 0; h < whole; h += 4) {
    for (int i = 0; i < P; ++i) std::memcpy(&words[i], v + i * dim + h, 4);
    step(words, h);
  }
  if (whole < dim) {
    for (int i = 0; i < P; ++i) {
      words[i] = 0;
      std::memcpy(&words[i], v + i * dim + whole, dim - whole);
    }
    step(words, whole);
  }
  for (int i = 0; i < P; ++i) {
    const __m512 scale = _mm512_set1_ps(dense.scales[first + i]);
    for (int j = 0; j < B; ++j)
      _mm512_storeu_ps(scores + i * lanes + lane + 16 * j, _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][j]), scale));
  }
}

template <int B>
void blocks(const DenseSearch& dense, const PackedQueries& packed, int64_t first, int64_t count, int64_t lane,
            float* scores) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) block<4, B>(dense, packed, first + i, lane, scores + i * packed.lanes);
  for (; i < count; ++i) block<1, B>(dense, packed, first + i, lane, scores + i * packed.lanes);
}

}  // namespace

bool has_vnni() { return __builtin_cpu_supports("avx512vnni"); }

PackedQueries vnni_pack(const DenseSearch& dense) {
  const int64_t dim = dense.dim, count = dense.num_queries;
  const auto* queries = static_cast<const int8_t*>(dense.queries);
  PackedQueries packed;
  const bool few = count <= kFewQueries;
  packed.lanes = few ? count : (count + 15) / 16 * 16;
  packed.bias.assign(packed.lanes, 0);
  const int64_t padded = few ? (dim + kBytes - 1) / kBytes * kBytes : (dim + 3) / 4 * 4;
  packed.bytes.assign(padded * packed.lanes, 0);
  for (int64_t q = 0; q < count; ++q)
    for (int64_t h = 0; h < dim; ++h) {
      const int8_t value = queries[q * dim + h];
      packed.bias[q] -= 128 * value;
      packed.bytes[few ? q * padded + h : h / 4 * 4 * packed.lanes + q * 4 + h % 4] = value;
    }
  return packed;
}

void vnni_scores(const DenseSearch& dense, const PackedQueries& packed, int64_t first, int64_t count, float* scores,
                 float*) {
  switch (dense.num_queries) {
    case 1: return few_queries<1>(dense, packed, first, count, scores);
    case 2: return few_queries<2>(dense, packed, first, count, scores);
    case 3: return few_queries<3>(dense, packed, first, count, scores);
    case 4: return few_queries<4>(dense, packed, first, count, scores);
  }
  int64_t lane = 0;
  for (; lane + 64 <= packed.lanes; lane += 64) blocks<4>(dense, packed, first, count, lane, scores);
  for (; lane + 32 <= packed.lanes; lane += 32) blocks<2>(dense, packed, first, count, lane, scores);
  for (; lane < packed.lanes; lane += 16) blocks<1>(dense, packed, first, count, lane, scores);
}

}  // namespace pss

#else

namespace pss {

bool has_vnni() { return false; }
PackedQueries vnni_pack(const DenseSearch&) { return {}; }
void vnni_scores(const DenseSearch&, const PackedQueries&, int64_t, int64_t, float*, float*) {}

}  // namespace pss

#endif
