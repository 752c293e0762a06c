// Dot products of int8 vectors by AVX-512 VNNI.
#pragma once
#include <cstdint>

#include "cpu/packed_queries.h"
#include "cpu/retrieve_topk.h"

namespace pss {

bool has_vnni();
PackedQueries vnni_pack(const DenseSearch& dense);

// scores[i * lanes + q] for the passages first + i, i < count; `scratch` is not used.
void vnni_scores(const DenseSearch& dense, const PackedQueries& packed, int64_t first, int64_t count, float* scores,
                 float* scratch);

}  // namespace pss
