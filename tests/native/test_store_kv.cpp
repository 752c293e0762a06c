#include "cpu/store_kv.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

PSS_TEST(store_kv_writes_its_rows_and_no_others) {
  const int64_t cache_rows = 9, size = 13, stride = 20;
  const std::vector<int64_t> kv_rows{8, 0, 5};
  for (const DType row : kTypes)
    for (const DType cache : kTypes) {
      Random random(7);
      const Tensor k = random_rows(random, row, 3, size, stride), v = random_rows(random, row, 3, size, stride);
      Tensor k_cache(cache, cache_rows * size, 3.0f), v_cache(cache, cache_rows * size, 3.0f);
      StoreKV op{};
      op.k_cache = k_cache.data(), op.v_cache = v_cache.data(), op.k = k.data(), op.v = v.data();
      op.kv_rows = kv_rows.data(), op.num_tokens = 3, op.num_cache_rows = cache_rows, op.row_size = size;
      op.k_stride = op.v_stride = stride, op.row_type = row, op.cache_type = cache;
      store_kv(op);
      for (int64_t r = 0; r < cache_rows; ++r)
        for (int64_t i = 0; i < size; ++i) {
          Tensor expected(cache, 2, 3.0f);
          for (int64_t t = 0; t < 3; ++t)
            if (kv_rows[t] == r) expected.set(0, k[t * stride + i]), expected.set(1, v[t * stride + i]);
          expect(label("k", {r, i}), k_cache[r * size + i] == expected[0]);
          expect(label("v", {r, i}), v_cache[r * size + i] == expected[1]);
        }
      op.num_cache_rows = 8;
      expect_refused("row 8 of 8", "kv_rows[0] = 8", [&] { store_kv(op); });
    }
}
