#include "cuda/paged_attention.cuh"

#include "cuda/launch.h"

namespace pss::cuda {
namespace {

template <int kGroup>
void launch(const AttentionArgs& op, void* stream) {
  const dim3 grid(unsigned(op.num_tokens), unsigned(op.num_kv_heads), unsigned(op.num_parts));
  const size_t shared = (2 * kTile + kGroup * (op.head_dim + kTile + 2)) * sizeof(float);
  if (op.num_parts > 1) {
    PSS_LAUNCH((attend<kGroup, true>), grid, dim3(kTile), shared, stream, op);
    const dim3 lines(unsigned(op.num_tokens), unsigned(op.num_heads));
    PSS_LAUNCH(merge_parts, lines, dim3(kTile), 0, stream, op);
  } else {
    PSS_LAUNCH((attend<kGroup, false>), grid, dim3(kTile), shared, stream, op);
  }
}

}  // namespace

void paged_attention(const AttentionArgs& op, void* stream) {
  if (!op.num_tokens || !op.num_rows) return;
  const long long group = op.num_heads / op.num_kv_heads;
  if (group <= 1) launch<1>(op, stream);
  else if (group <= 4) launch<4>(op, stream);
  else if (group <= 8) launch<8>(op, stream);
  else launch<16>(op, stream);
}

}  // namespace pss::cuda
