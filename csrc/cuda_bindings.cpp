// The CUDA kernels for Python: tensors arrive as addresses, streams as handles. The caller keeps them alive.
#include "cuda_bindings.h"

#ifdef PSS_WITH_CUDA
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/device.h"
#include "cuda/launch.h"

namespace py = pybind11;

namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void check(const char* op) {
  if (const char* error = pss::cuda::last_error()) throw std::runtime_error(std::string(op) + ": " + error);
}

void lora_bgmv(Address y, Address x, Address lora_a, Address lora_b, Address scaling, Address ranks, Address slot_ids,
               Address low, long long num_rows, long long num_slots, long long max_rank, long long in_features,
               long long out_features, long long y_stride, long long x_stride, long long a_stride, long long b_stride,
               int row_type, int lora_type, Address stream) {
  pss::cuda::lora_bgmv({at<void>(y), at<void>(x), at<void>(lora_a), at<void>(lora_b), at<float>(scaling), at<int>(ranks),
                        at<int>(slot_ids), at<float>(low), num_rows, num_slots, max_rank, in_features, out_features,
                        y_stride, x_stride, a_stride, b_stride, row_type, lora_type},
                       at<void>(stream));
  check("lora_bgmv");
}

void paged_attention(Address out, Address q, Address k_cache, Address v_cache, Address block_tables,
                     Address query_starts, Address context_lens, Address mixed, Address peaks, Address totals,
                     long long num_rows, long long num_tokens, long long max_blocks, long long block_size,
                     long long num_heads, long long num_kv_heads, long long head_dim, long long num_parts,
                     long long q_stride, long long window, float scale, int row_type, int cache_type, Address stream) {
  pss::cuda::paged_attention(
      {at<void>(out), at<void>(q), at<void>(k_cache), at<void>(v_cache), at<int>(block_tables), at<int>(query_starts),
       at<int>(context_lens), at<float>(mixed), at<float>(peaks), at<float>(totals), num_rows, num_tokens, max_blocks,
       block_size, num_heads, num_kv_heads, head_dim, num_parts, q_stride, window, scale, row_type, cache_type},
      at<void>(stream));
  check("paged_attention");
}

void store_kv(Address k_cache, Address v_cache, Address k, Address v, Address kv_rows, long long num_tokens,
              long long num_cache_rows, long long row_size, long long k_stride, long long v_stride, int row_type,
              int cache_type, Address stream) {
  pss::cuda::store_kv({at<void>(k_cache), at<void>(v_cache), at<void>(k), at<void>(v), at<long long>(kv_rows), num_tokens,
                       num_cache_rows, row_size, k_stride, v_stride, row_type, cache_type},
                      at<void>(stream));
  check("store_kv");
}

void copy_segments(Address from, Address to, Address bytes, long long count, Address stream) {
  pss::cuda::copy_segments({at<long long>(from), at<long long>(to), at<long long>(bytes), count}, at<void>(stream));
  check("copy_segments");
}

void dense_candidates(Address keys, Address places, Address masks, Address mask_rows, Address queries, Address vectors,
                      Address scales, long long num_passages, long long depth, long long num_queries, long long size,
                      int query_type, int vector_type, Address stream) {
  pss::cuda::dense_candidates({{at<int>(places), at<unsigned char>(masks), at<int>(mask_rows), at<long long>(keys),
                                num_passages, depth},
                               at<void>(queries), at<void>(vectors), at<float>(scales), num_queries, size, query_type,
                               vector_type},
                              at<void>(stream));
  check("retrieve_topk");
}

void sparse_candidates(Address keys, Address places, Address masks, Address mask_rows, Address terms, Address starts,
                       Address indptr, Address passages, Address weights, long long num_passages, long long depth,
                       long long num_queries, Address stream) {
  pss::cuda::sparse_candidates({{at<int>(places), at<unsigned char>(masks), at<int>(mask_rows), at<long long>(keys),
                                 num_passages, depth},
                                at<int>(terms), at<long long>(starts), at<long long>(indptr), at<int>(passages),
                                at<float>(weights), num_queries},
                               at<void>(stream));
  check("retrieve_topk");
}

}  // namespace

void add_cuda(py::module_& m) {
  py::module_ cuda = m.def_submodule("cuda", "CUDA kernels, asynchronous on the stream given.");
  cuda.def("why_not", &pss::cuda::why_not, "Why no kernel can run on the current device; an empty text if they can.");
  cuda.def("lora_bgmv", &lora_bgmv);
  cuda.def("paged_attention", &paged_attention);
  cuda.def("store_kv", &store_kv);
  cuda.def("copy_segments", &copy_segments);
  cuda.def("dense_candidates", &dense_candidates);
  cuda.def("sparse_candidates", &sparse_candidates);
  cuda.attr("SEARCH_BLOCK") = pss::cuda::kSearchBlock;
  cuda.attr("MAX_GROUP") = pss::cuda::kMaxGroup;
  cuda.attr("MAX_HEAD_DIM") = pss::cuda::kMaxHeadDim;
  cuda.attr("PART") = pss::cuda::kPart;
}
#else
void add_cuda(pybind11::module_&) {}
#endif
