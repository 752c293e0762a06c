// With cuda_bindings.cpp the only file that knows Python: tensors arrive as addresses, sizes and strides. The caller keeps them alive.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "cpu/argmax.h"
#include "cpu/backward_rows.h"
#include "cpu/decoder.h"
#include "cpu/decoder_rows.h"
#include "cpu/isa.h"
#include "cpu/linear.h"
#include "cpu/lora_bgmv.h"
#include "cpu/masked_attention.h"
#include "cpu/memory.h"
#include "cpu/paged_attention.h"
#include "cpu/peak.h"
#include "cpu/retrieve_topk.h"
#include "cpu/products.h"
#include "cpu/store_kv.h"
#include "cuda_bindings.h"
#ifdef PSS_WITH_CUDA
#include "cuda/device.h"
#endif

namespace py = pybind11;

namespace {

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void lora_bgmv(uintptr_t y, uintptr_t x, uintptr_t lora_a, uintptr_t lora_b, uintptr_t scaling, uintptr_t ranks,
               uintptr_t slot_ids, int64_t num_rows, int64_t num_slots, int64_t max_rank, int64_t in_features,
               int64_t out_features, int64_t y_stride, int64_t x_stride, int64_t a_stride, int64_t b_stride,
               int row_type, int lora_type) {
  pss::lora_bgmv({pointer<void>(y), pointer<void>(x), pointer<void>(lora_a), pointer<void>(lora_b),
                  pointer<float>(scaling), pointer<int32_t>(ranks), pointer<int32_t>(slot_ids), num_rows, num_slots,
                  max_rank, in_features, out_features, y_stride, x_stride, a_stride, b_stride,
                  pss::DType(row_type), pss::FactorType(lora_type)});
}

// Each product as (out, left, right, rows, depth, columns, out_stride, left_row, left_depth, right_depth, right_column,
// alpha, add).
using ProductArgs = std::tuple<uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                               int64_t, int64_t, float, bool>;

void products(const std::vector<ProductArgs>& all) {
  std::vector<pss::Product> wanted;
  wanted.reserve(all.size());
  for (const auto& args : all)
    wanted.push_back(std::apply(
        [](uintptr_t out, uintptr_t left, uintptr_t right, auto... rest) {
          return pss::Product{pointer<float>(out), pointer<float>(left), pointer<float>(right), rest...};
        },
        args));
  pss::products(wanted.data(), int64_t(wanted.size()));
}

void linear(uintptr_t y, uintptr_t x, uintptr_t packed, uintptr_t bias, int64_t num_rows, int64_t in_features,
            int64_t out_features, int64_t y_stride, int64_t x_stride, int format,
            bool int8_rows) {
  pss::linear({pointer<float>(y), pointer<float>(x), pointer<void>(packed), pointer<float>(bias), num_rows, in_features,
               out_features, y_stride, x_stride, pss::WeightFormat(format), int8_rows});
}

void gather_rows(uintptr_t y, uintptr_t ids, uintptr_t packed, int64_t num_rows, int64_t in_features,
                 int64_t out_features, int format) {
  pss::gather_rows({pointer<float>(y), pointer<int64_t>(ids), pointer<void>(packed), num_rows, in_features,
                    out_features, pss::WeightFormat(format)});
}

void paged_attention(uintptr_t out, uintptr_t q, uintptr_t k_cache, uintptr_t v_cache, uintptr_t block_tables,
                     uintptr_t query_starts, uintptr_t context_lens, int64_t num_rows, int64_t num_tokens,
                     int64_t max_blocks, int64_t num_blocks, int64_t block_size, int64_t num_heads,
                     int64_t num_kv_heads, int64_t head_dim, int64_t out_stride, int64_t q_stride, int64_t window,
                     float scale, int row_type, int cache_type) {
  pss::paged_attention({pointer<void>(out), pointer<void>(q), pointer<void>(k_cache), pointer<void>(v_cache),
                        pointer<int32_t>(block_tables), pointer<int32_t>(query_starts), pointer<int32_t>(context_lens),
                        num_rows, num_tokens, max_blocks, num_blocks, block_size, num_heads, num_kv_heads, head_dim,
                        out_stride, q_stride, window, scale, pss::DType(row_type), pss::DType(cache_type)});
}

void store_kv(uintptr_t k_cache, uintptr_t v_cache, uintptr_t k, uintptr_t v, uintptr_t kv_rows, int64_t num_tokens,
              int64_t num_cache_rows, int64_t row_size, int64_t k_stride, int64_t v_stride, int row_type,
              int cache_type) {
  pss::store_kv({pointer<void>(k_cache), pointer<void>(v_cache), pointer<void>(k), pointer<void>(v),
                 pointer<int64_t>(kv_rows), num_tokens, num_cache_rows, row_size, k_stride, v_stride,
                 pss::DType(row_type), pss::DType(cache_type)});
}

void rms_norm(uintptr_t y, uintptr_t x, uintptr_t weight, int64_t num_rows, int64_t size, int64_t x_stride, float eps,
              int type) {
  pss::rms_norm({pointer<void>(y), pointer<void>(x), pointer<void>(weight), num_rows, size, x_stride, eps,
                 pss::DType(type)});
}

void silu_mul(uintptr_t y, uintptr_t x, int64_t num_rows, int64_t size, int64_t x_stride, int type) {
  pss::silu_mul({pointer<void>(y), pointer<void>(x), num_rows, size, x_stride, pss::DType(type)});
}

void rms_norm_backward(uintptr_t dx, uintptr_t dy, uintptr_t x, uintptr_t weight, uintptr_t residual, int64_t num_rows,
                       int64_t size, int64_t dy_stride, int64_t x_stride, float eps) {
  pss::rms_norm_backward({pointer<float>(dx), pointer<float>(dy), pointer<float>(x), pointer<float>(weight),
                          pointer<float>(residual), num_rows, size, dy_stride, x_stride, eps});
}

void silu_mul_backward(uintptr_t dx, uintptr_t dy, uintptr_t x, int64_t num_rows, int64_t size, int64_t dy_stride,
                       int64_t x_stride) {
  pss::silu_mul_backward({pointer<float>(dx), pointer<float>(dy), pointer<float>(x), num_rows, size, dy_stride, x_stride});
}

void cross_entropy(uintptr_t losses, uintptr_t x, uintptr_t labels, int64_t num_rows, int64_t size, int64_t x_stride,
                   bool with_grad) {
  pss::cross_entropy({pointer<float>(losses), pointer<float>(x), pointer<int64_t>(labels), num_rows, size, x_stride,
                      with_grad});
}

pss::MaskedAttention sequence(uintptr_t q, uintptr_t k, uintptr_t v, int64_t num_rows, int64_t num_heads,
                              int64_t num_kv_heads, int64_t head_dim, int64_t q_stride, int64_t k_stride,
                              int64_t v_stride, float scale) {
  return {pointer<float>(q), pointer<float>(k), pointer<float>(v), num_rows, num_heads, num_kv_heads, head_dim,
          q_stride, k_stride, v_stride, scale};
}

void masked_attention(uintptr_t q, uintptr_t k, uintptr_t v, int64_t num_rows, int64_t num_heads, int64_t num_kv_heads,
                      int64_t head_dim, int64_t q_stride, int64_t k_stride, int64_t v_stride, float scale,
                      uintptr_t mask, int64_t mask_stride, uintptr_t shares, uintptr_t out) {
  const auto op = sequence(q, k, v, num_rows, num_heads, num_kv_heads, head_dim, q_stride, k_stride, v_stride, scale);
  pss::masked_attention(op, pointer<float>(mask), mask_stride, pointer<float>(shares), pointer<float>(out));
}

// grads [t, N + 2 K, D]: of q, of k, of v.
void masked_attention_backward(uintptr_t q, uintptr_t k, uintptr_t v, int64_t num_rows, int64_t num_heads,
                               int64_t num_kv_heads, int64_t head_dim, int64_t q_stride, int64_t k_stride,
                               int64_t v_stride, float scale, uintptr_t dy, int64_t dy_stride, uintptr_t shares,
                               uintptr_t grads) {
  const auto op = sequence(q, k, v, num_rows, num_heads, num_kv_heads, head_dim, q_stride, k_stride, v_stride, scale);
  float *dq = pointer<float>(grads), *dk = dq + num_heads * head_dim, *dv = dk + num_kv_heads * head_dim;
  pss::masked_attention_backward(op, pointer<float>(dy), dy_stride, pointer<float>(shares), dq, dk, dv,
                                 (num_heads + 2 * num_kv_heads) * head_dim);
}

void argmax(uintptr_t tokens, uintptr_t logits, int64_t num_rows, int64_t size, int64_t stride, int type) {
  pss::argmax({pointer<int64_t>(tokens), pointer<void>(logits), num_rows, size, stride, pss::DType(type)});
}

void apply_rope(uintptr_t y, uintptr_t x, uintptr_t cos, uintptr_t sin, int64_t num_rows, int64_t num_heads,
                int64_t head_dim, int64_t half, int64_t x_stride, int type) {
  pss::apply_rope({pointer<void>(y), pointer<void>(x), pointer<float>(cos), pointer<float>(sin), num_rows, num_heads,
                   head_dim, half, num_heads * head_dim, x_stride, pss::DType(type)});
}

// A projection: (packed, bias, out_features, format) of its parts.
using PartTuple = std::tuple<uintptr_t, uintptr_t, int64_t, int>;

pss::Projection projection(const std::vector<PartTuple>& parts, int64_t in_features) {
  pss::Projection found{{}, {}, in_features, 0};
  for (const auto& [packed, bias, out_features, format] : parts) {
    found.parts.push_back({pointer<void>(packed), pointer<float>(bias), out_features, pss::WeightFormat(format)});
    found.out_features += out_features;
  }
  return found;
}

void add_target(pss::Projection& projection, uintptr_t lora_a, uintptr_t lora_b, uintptr_t scaling, uintptr_t ranks,
                int64_t num_slots, int64_t max_rank, int64_t in_features, int64_t out_features, int64_t a_stride,
                int64_t b_stride, int lora_type, int64_t offset) {
  pss::LoraBgmv op{};
  op.lora_a = pointer<void>(lora_a), op.lora_b = pointer<void>(lora_b);
  op.scaling = pointer<float>(scaling), op.ranks = pointer<int32_t>(ranks);
  op.num_slots = num_slots, op.max_rank = max_rank, op.in_features = in_features, op.out_features = out_features;
  op.a_stride = a_stride, op.b_stride = b_stride;
  op.row_type = pss::DType::f32, op.lora_type = pss::FactorType(lora_type);
  projection.targets.push_back({op, offset});
}

int64_t run_decoder(const pss::Decoder& decoder, uintptr_t hidden, uintptr_t cos, uintptr_t sin, uintptr_t kv_rows,
                    uintptr_t block_tables, uintptr_t query_starts, uintptr_t context_lens, uintptr_t slot_ids,
                    int64_t num_tokens, int64_t num_rows, int64_t max_blocks, int64_t first, int64_t last) {
  return decoder.run({pointer<float>(hidden), pointer<float>(cos), pointer<float>(sin), pointer<int64_t>(kv_rows),
                      pointer<int32_t>(block_tables), pointer<int32_t>(query_starts), pointer<int32_t>(context_lens),
                      pointer<int32_t>(slot_ids), num_tokens, num_rows, max_blocks},
                     first, last);
}

float read_memory(uintptr_t memory, int64_t floats, int threads) {
  return pss::read_memory(pointer<float>(memory), floats, threads);
}

void retrieve_topk(uintptr_t queries, uintptr_t vectors, uintptr_t scales, int64_t num_dense, int64_t dim, int vector_type,
                   uintptr_t terms, uintptr_t starts, uintptr_t indptr, uintptr_t postings, uintptr_t weights,
                   int64_t num_sparse, int64_t num_terms, int64_t num_query_terms, int64_t num_postings, uintptr_t ranks, uintptr_t groups, uintptr_t shares,
                   uintptr_t masks, uintptr_t mask_ids, int64_t num_passages, int64_t num_masks, int64_t num_groups,
                   int64_t depth, int64_t k, uintptr_t passages, uintptr_t fused, uintptr_t list_passages,
                   uintptr_t list_scores) {
  const bool is_int8 = vector_type < 0;
  pss::retrieve_topk({{pointer<void>(queries), pointer<void>(vectors), pointer<float>(scales), num_dense, dim, is_int8,
                       pss::DType(is_int8 ? 0 : vector_type)},
                      {pointer<int32_t>(terms), pointer<int64_t>(starts), pointer<int64_t>(indptr),
                       pointer<int32_t>(postings), pointer<float>(weights), num_sparse, num_terms, num_query_terms,
                       num_postings},
                      pointer<int32_t>(ranks), pointer<int32_t>(groups), pointer<int64_t>(shares),
                      pointer<uint8_t>(masks), pointer<int32_t>(mask_ids), num_passages, num_masks, num_groups, depth,
                      k, pointer<int32_t>(passages), pointer<int64_t>(fused), pointer<int32_t>(list_passages),
                      pointer<float>(list_scores)});
}

void advise_huge_pages(uintptr_t address, int64_t bytes) { pss::advise_huge_pages(pointer<void>(address), bytes); }

int device_count() {
#ifdef PSS_WITH_CUDA
  return pss::cuda::device_count();
#else
  return 0;
#endif
}

bool with_cuda() {
#ifdef PSS_WITH_CUDA
  return true;
#else
  return false;
#endif
}

bool with_openmp() {
#ifdef _OPENMP
  return true;
#else
  return false;
#endif
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "C++ and CUDA kernels of pss_engine. Import torch first: both use one OpenMP runtime.";
  m.def("isa", [] { return pss::isa_name(pss::isa()); }, "Instruction set in use: scalar, neon, neon_dot, avx2, avx512 or avx512_vnni.");
  m.def("set_isa", &pss::set_isa, "Use another of supported_isas() from now on.");
  m.def("supported_isas", [] {
    std::vector<std::string> names;
    for (pss::Isa level : pss::supported_isas()) names.push_back(pss::isa_name(level));
    return names;
  }, "Instruction sets that this processor runs, lowest first.");
  m.def("with_cuda", &with_cuda, "Whether the CUDA part was built.");
  m.def("with_openmp", &with_openmp, "Whether rows run on several threads.");
  m.def("device_count", &device_count, "CUDA devices that the CUDA part can use; 0 without a driver.");
  m.def("advise_huge_pages", &advise_huge_pages, "Huge pages for memory not yet written, if they are to be had.");
  const py::call_guard<py::gil_scoped_release> without_gil;
  m.def("lora_bgmv", &lora_bgmv, without_gil);
  m.def("run_multiply_adds", &pss::run_multiply_adds, without_gil, "How many were run; to be timed from outside.");
  m.def("read_memory", &read_memory, without_gil, "The sum of the floats that were read; to be timed from outside.");
  m.def("linear", &linear, without_gil);
  m.def("gather_rows", &gather_rows, without_gil);
  m.def("products", &products, without_gil);
  m.def("paged_attention", &paged_attention, without_gil);
  m.def("store_kv", &store_kv, without_gil);
  m.def("rms_norm", &rms_norm, without_gil);
  m.def("silu_mul", &silu_mul, without_gil);
  m.def("rms_norm_backward", &rms_norm_backward, without_gil);
  m.def("silu_mul_backward", &silu_mul_backward, without_gil);
  m.def("cross_entropy", &cross_entropy, without_gil);
  m.def("masked_attention", &masked_attention, without_gil);
  m.def("masked_attention_backward", &masked_attention_backward, without_gil);
  m.def("argmax", &argmax, without_gil);
  m.def("apply_rope", &apply_rope, without_gil);
  m.def("retrieve_topk", &retrieve_topk, without_gil);

  py::class_<pss::Projection>(m, "Projection", "A packed linear of a decoder layer, with the states that add to it.")
      .def(py::init(&projection))
      .def("add_target", &add_target);
  py::class_<pss::DecoderLayer>(m, "DecoderLayer")
      .def(py::init([](uintptr_t input_norm, uintptr_t post_norm, const pss::Projection& qkv, const pss::Projection& o,
                       const pss::Projection& gate_up, const pss::Projection& down, uintptr_t k_cache,
                       uintptr_t v_cache, int64_t window) {
        return pss::DecoderLayer{pointer<float>(input_norm), pointer<float>(post_norm), qkv, o, gate_up, down,
                                 pointer<void>(k_cache), pointer<void>(v_cache), window};
      }));
  py::class_<pss::Decoder>(m, "Decoder", "Decoder layers that run in one call.")
      .def(py::init([](int64_t hidden_size, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                       int64_t intermediate_size, int64_t half_rotary, int64_t num_blocks, int64_t block_size,
                       int cache_type, float eps, float scale, bool int8_rows,
                       const std::vector<pss::DecoderLayer>& layers) {
        return pss::Decoder({hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, half_rotary, num_blocks,
                             block_size, pss::DType(cache_type), eps, scale, int8_rows},
                            layers);
      }))
      .def("run", &run_decoder, without_gil);
  add_cuda(m);
}
