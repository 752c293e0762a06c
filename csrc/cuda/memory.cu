#include "cuda/memory.cuh"

#include "cuda/launch.h"

namespace pss::cuda {

void store_kv(const StoreArgs& op, void* stream) {
  if (!op.num_tokens || !op.row_size) return;
  PSS_LAUNCH(store_rows, dim3(unsigned(op.num_tokens)), dim3(kCopyThreads), 0, stream, op);
}

void copy_segments(const CopyArgs& op, void* stream) {
  if (!op.count) return;
  PSS_LAUNCH(copy_bytes, dim3(kCopyBlocks, unsigned(op.count)), dim3(kCopyThreads), 0, stream, op);
}

}  // namespace pss::cuda
