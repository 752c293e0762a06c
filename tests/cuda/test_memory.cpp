#include <algorithm>

#include "cuda/launch.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

PSS_TEST(store_kv_writes_its_rows_and_leaves_out_what_is_not_in_the_cache) {
  const int64_t size = 13, stride = 20;
  const std::vector<long long> kv_rows{8, -1, 5, 9};
  for (const DType row : kTypes)
    for (const DType cache : kTypes) {
      Random random(7);
      const Tensor k = random_rows(random, row, 4, size, stride), v = random_rows(random, row, 4, size, stride);
      Tensor k_cache(cache, 9 * size, 3.0f), v_cache(cache, 9 * size, 3.0f);
      cuda::store_kv({k_cache.data(), v_cache.data(), k.data(), v.data(), kv_rows.data(), 4, 9, size, stride, stride,
                      int(row), int(cache)},
                     nullptr);
      for (int64_t r = 0; r < 9; ++r)
        for (int64_t i = 0; i < size; ++i) {
          Tensor expected(cache, 2, 3.0f);
          for (int64_t t = 0; t < 4; ++t)
            if (kv_rows[t] == r) expected.set(0, k[t * stride + i]), expected.set(1, v[t * stride + i]);
          expect(label("k", {r, i}), k_cache[r * size + i] == expected[0]);
          expect(label("v", {r, i}), v_cache[r * size + i] == expected[1]);
        }
    }
}

PSS_TEST(copies_of_any_size_and_place_in_one_launch) {
  const std::vector<long long> sizes{1, 16, 17, 1000, 4096, 0};
  std::vector<std::vector<unsigned char>> from, to;
  std::vector<long long> sources, targets;
  Random random(3);
  for (size_t i = 0; i < sizes.size(); ++i) {
    from.emplace_back(sizes[i] + i % 3), to.emplace_back(sizes[i] + i % 2, 0xEE);
    for (unsigned char& byte : from[i]) byte = (unsigned char)random.below(256);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    sources.push_back(reinterpret_cast<long long>(from[i].data() + i % 3));
    targets.push_back(reinterpret_cast<long long>(to[i].data() + i % 2));
  }
  cuda::copy_segments({sources.data(), targets.data(), sizes.data(), (long long)sizes.size()}, nullptr);
  for (size_t i = 0; i < sizes.size(); ++i) {
    expect(label("bytes", {int64_t(i)}), std::equal(from[i].begin() + i % 3, from[i].end(), to[i].begin() + i % 2));
    if (i % 2) expect(label("before", {int64_t(i)}), to[i][0] == 0xEE);
  }
}
