#include <algorithm>

#include "cuda/launch.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

constexpr long long kNothing = -0x7fffffffffffffffLL - 1;

// Places, masks and the keys of a search; two masks, dealt to the queries in turn with none.
struct Search {
  int64_t num_queries, num_passages, depth;
  std::vector<int> places, mask_rows;
  std::vector<unsigned char> masks;
  std::vector<long long> keys;

  Search(Random& random, int64_t queries, int64_t passages, int64_t most)
      : num_queries(queries), num_passages(passages), depth(std::min<int64_t>(most, cuda::kSearchBlock)) {
    for (int64_t n = 0; n < passages; ++n) places.push_back(int(n * 7 % passages));
    for (int64_t i = 0; i < 2 * passages; ++i) masks.push_back(random() < 0);
    for (int64_t q = 0; q < queries; ++q) mask_rows.push_back(int(q % 3) - 1);
    keys.assign(queries * blocks() * depth, 1);
  }
  int64_t blocks() const { return (num_passages + cuda::kSearchBlock - 1) / cuda::kSearchBlock; }
  cuda::SearchArgs args() {
    return {places.data(), masks.data(), mask_rows.data(), keys.data(), num_passages, depth};
  }

  // scores: [B, N]; a passage is found where `found` says so and the mask allows it.
  void expect_best(const std::vector<float>& scores, bool only_positive) const {
    for (int64_t q = 0; q < num_queries; ++q)
      for (int64_t b = 0; b < blocks(); ++b) {
        std::vector<long long> expected;
        for (int64_t n = b * cuda::kSearchBlock; n < std::min<int64_t>(num_passages, (b + 1) * cuda::kSearchBlock); ++n) {
          const float score = scores[q * num_passages + n] + 0.0f;
          const bool allowed = mask_rows[q] < 0 || masks[mask_rows[q] * num_passages + n];
          int bits;
          std::memcpy(&bits, &score, 4);
          const long long ordered = bits < 0 ? bits ^ 0x7fffffff : bits;
          if (allowed && (!only_positive || score > 0)) expected.push_back(ordered * (1LL << 32) + (0xffffffffLL - places[n]));
        }
        std::sort(expected.rbegin(), expected.rend());
        expected.resize(depth, kNothing);
        for (int64_t i = 0; i < depth; ++i)
          expect(label("key", {q, b, i}), keys[(q * blocks() + b) * depth + i] == expected[i]);
      }
  }
};

void check_floats(int64_t queries, int64_t passages, int64_t size, int64_t depth, DType type) {
  Random random(size * 100 + passages);
  Search search(random, queries, passages, depth);
  const Tensor q = random_rows(random, DType::f32, queries, size, size), v = random_rows(random, type, passages, size, size);
  std::vector<float> scores;
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t n = 0; n < passages; ++n) {
      float sum = 0;
      for (int64_t h = 0; h < size; ++h) sum = std::fma(q[i * size + h], v[n * size + h], sum);
      scores.push_back(sum);
    }
  cuda::dense_candidates({search.args(), q.data(), v.data(), nullptr, queries, size, cuda::kF32, int(type)}, nullptr);
  search.expect_best(scores, false);
}

void check_int8(int64_t queries, int64_t passages, int64_t size, int64_t depth) {
  Random random(size);
  Search search(random, queries, passages, depth);
  std::vector<signed char> q, v;
  for (int64_t i = 0; i < queries * size; ++i) q.push_back((signed char)(random.below(255) - 127));
  for (int64_t i = 0; i < passages * size; ++i) v.push_back((signed char)(random.below(255) - 127));
  std::vector<float> scales, scores;
  for (int64_t n = 0; n < passages; ++n) scales.push_back(0.01f + std::fabs(random()));
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t n = 0; n < passages; ++n) {
      int sum = 0;
      for (int64_t h = 0; h < size; ++h) sum += q[i * size + h] * v[n * size + h];
      scores.push_back(float(sum) * scales[n]);
    }
  cuda::dense_candidates(
      {search.args(), q.data(), v.data(), scales.data(), queries, size, cuda::kI8, cuda::kI8}, nullptr);
  search.expect_best(scores, false);
}

}  // namespace

PSS_TEST(dense_candidates_over_odd_sizes) {
  for (const int64_t size : {1, 31, 33, 70})
    for (const int64_t passages : {1, 256, 300}) check_floats(3, passages, size, 5, DType::f32);
  check_floats(9, 70, 40, 300, DType::f32);
}

PSS_TEST(dense_candidates_over_types) {
  for (const DType type : kTypes) check_floats(2, 40, 64, 40, type);
  for (const int64_t size : {1, 7, 128, 131, 260}) check_int8(9, 270, size, 3);
}

PSS_TEST(sparse_candidates_add_their_terms_in_order) {
  Random random(5);
  const int64_t passages = 600;
  Search search(random, 3, passages, 20);
  const std::vector<int> terms{0, 2, 2, 1};
  const std::vector<long long> starts{0, 3, 3, 4};
  std::vector<long long> indptr{0};
  std::vector<int> held;
  std::vector<float> weights, scores(3 * passages);
  for (int64_t term = 0; term < 3; ++term) {
    for (int64_t n = 0; n < passages; ++n)
      if (random.below(term + 1) == 0) held.push_back(int(n)), weights.push_back(float(random.below(3)));
    indptr.push_back((long long)held.size());
  }
  for (int64_t q = 0; q < 3; ++q)
    for (long long at = starts[q]; at < starts[q + 1]; ++at)
      for (long long p = indptr[terms[at]]; p < indptr[terms[at] + 1]; ++p) scores[q * passages + held[p]] += weights[p];
  cuda::sparse_candidates(
      {search.args(), terms.data(), starts.data(), indptr.data(), held.data(), weights.data(), 3}, nullptr);
  search.expect_best(scores, true);
}
