#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace pss {

// cache[kv_rows[t]] = k[t], v[t]. Strides count elements between tokens; the heads of a token are contiguous.
struct StoreKV {
  void* k_cache;            // [num_cache_rows, row_size]
  void* v_cache;
  const void* k;            // [T, row_size]
  const void* v;
  const int64_t* kv_rows;   // [T]
  int64_t num_tokens, num_cache_rows, row_size, k_stride, v_stride;
  DType row_type, cache_type;
};

// Throws std::invalid_argument for a cache row out of range; the caches are untouched then.
void store_kv(const StoreKV& op);

// Token by token, for who has threads at hand; `check` throws as above.
void check(const StoreKV& op);
void store_kv(const StoreKV& op, int64_t token);

}  // namespace pss
