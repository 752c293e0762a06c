#include "cuda/retrieve_topk.cuh"

#include "cuda/launch.h"

namespace pss::cuda {
namespace {

unsigned num_blocks(const SearchArgs& op) { return unsigned((op.num_passages + kPassages - 1) / kPassages); }

}  // namespace

void dense_candidates(const DenseArgs& op, void* stream) {
  if (!op.num_queries || !op.to.num_passages) return;
  const dim3 grid(num_blocks(op.to), unsigned((op.num_queries + kQueries - 1) / kQueries));
  const size_t shared = kPassages * sizeof(long long) + (kPassages * kTileStride + kQueries * kColumnsOfTile) * 4;
  if (op.vector_type == kI8) PSS_LAUNCH(dense_candidates<Int8s>, grid, dim3(kPassages), shared, stream, op);
  else PSS_LAUNCH(dense_candidates<Floats>, grid, dim3(kPassages), shared, stream, op);
}

void sparse_candidates(const SparseArgs& op, void* stream) {
  if (!op.num_queries || !op.to.num_passages) return;
  const dim3 grid(num_blocks(op.to), unsigned(op.num_queries));
  PSS_LAUNCH(sparse_candidates, grid, dim3(kPassages), kPassages * (sizeof(long long) + sizeof(float)), stream, op);
}

}  // namespace pss::cuda
