// Eight floats at a time: what the AVX2 and AVX-512 versions have in common. Included inside their namespaces.
inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }

inline __m256 load8(const bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

inline __m256 load8(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

inline float highest8(__m256 v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline void store_bytes8(int8_t* p, __m256 v) {
  const __m256i words = _mm256_cvtps_epi32(v);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
}

// Rows become columns.
inline void turn8x8(__m256* r) {
  __m256 s[8];
#pragma GCC unroll 4
  for (int j = 0; j < 8; j += 2) {
    s[j] = _mm256_unpacklo_ps(r[j], r[j + 1]);
    s[j + 1] = _mm256_unpackhi_ps(r[j], r[j + 1]);
  }
#pragma GCC unroll 2
  for (int j = 0; j < 8; j += 4) {
    r[j] = _mm256_shuffle_ps(s[j], s[j + 2], 0x44);
    r[j + 1] = _mm256_shuffle_ps(s[j], s[j + 2], 0xee);
    r[j + 2] = _mm256_shuffle_ps(s[j + 1], s[j + 3], 0x44);
    r[j + 3] = _mm256_shuffle_ps(s[j + 1], s[j + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m256 low = r[j], high = r[j + 4];
    r[j] = _mm256_permute2f128_ps(low, high, 0x20);
    r[j + 4] = _mm256_permute2f128_ps(low, high, 0x31);
  }
}

// out[i * out_stride + j] = rows[j][i] for i, j < 8, i after i.
template <class T>
void transpose8x8(const T* const* rows, float* out, int64_t out_stride) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) r[j] = load8(rows[j]);
  turn8x8(r);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) _mm256_storeu_ps(out + j * out_stride, r[j]);
}
