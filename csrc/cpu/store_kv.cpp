#include "cpu/store_kv.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace pss {
namespace {

template <class From, class To>
void copy(const From* from, int64_t size, To* to) {
  if constexpr (std::is_same_v<From, To>)
    std::memcpy(to, from, size * sizeof(To));
  else
    for (int64_t i = 0; i < size; ++i) from_float(to_float(from[i]), to[i]);
}

template <class Row, class Cache>
void store_of(const StoreKV& op, int64_t t) {
  const int64_t at = op.kv_rows[t] * op.row_size;
  copy(static_cast<const Row*>(op.k) + t * op.k_stride, op.row_size, static_cast<Cache*>(op.k_cache) + at);
  copy(static_cast<const Row*>(op.v) + t * op.v_stride, op.row_size, static_cast<Cache*>(op.v_cache) + at);
}

template <class Row>
void store_with(const StoreKV& op, int64_t t) {
  switch (op.cache_type) {
    case DType::f32: return store_of<Row, float>(op, t);
    case DType::bf16: return store_of<Row, bf16>(op, t);
    case DType::f16: return store_of<Row, f16>(op, t);
  }
}

}  // namespace

void check(const StoreKV& op) {
  for (int64_t t = 0; t < op.num_tokens; ++t)
    if (op.kv_rows[t] < 0 || op.kv_rows[t] >= op.num_cache_rows)
      throw std::invalid_argument("store_kv: kv_rows[" + std::to_string(t) + "] = " + std::to_string(op.kv_rows[t]) +
                                  ", must be 0 to " + std::to_string(op.num_cache_rows - 1));
}

void store_kv(const StoreKV& op, int64_t t) {
  switch (op.row_type) {
    case DType::f32: return store_with<float>(op, t);
    case DType::bf16: return store_with<bf16>(op, t);
    case DType::f16: return store_with<f16>(op, t);
  }
}

void store_kv(const StoreKV& op) {
  check(op);
  for (int64_t t = 0; t < op.num_tokens; ++t) store_kv(op, t);
}

}  // namespace pss
