#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace pss {

// Vectors of passages [N, H] and of queries [B, H]: floats against float32 queries, or int8 against int8.
struct DenseSearch {
  const void* queries;
  const void* vectors;
  const float* scales;  // [N] with int8, else null
  int64_t num_queries, dim;
  bool is_int8;
  DType type;  // of float vectors
};

// Postings of all terms as CSR [V, N], and the terms of each query.
struct SparseSearch {
  const int32_t* terms;
  const int64_t* starts;    // [B + 1]
  const int64_t* indptr;    // [V + 1]
  const int32_t* passages;  // ascending within a term
  const float* weights;
  int64_t num_queries, num_terms, num_query_terms, num_postings;
};

// The formulas, orders and ties are those of the op's contract. L = dense + sparse queries, dense ones first.
struct RetrieveTopk {
  DenseSearch dense;
  SparseSearch sparse;
  const int32_t* ranks;     // [N]
  const int32_t* groups;    // [L]
  const int64_t* shares;    // [L, depth]
  const uint8_t* masks;     // [M, N]
  const int32_t* mask_ids;  // [G]
  int64_t num_passages, num_masks, num_groups, depth, k;
  int32_t* passages;        // [G, k]
  int64_t* fused;           // [G, k]
  int32_t* list_passages;   // [L, depth]
  float* list_scores;       // [L, depth]
};

// Throws std::invalid_argument for a group, mask, term or span of postings out of range; nothing is written then. The
// passages of postings belong to an index that was checked when it was made or opened.
void retrieve_topk(const RetrieveTopk& op);

}  // namespace pss
