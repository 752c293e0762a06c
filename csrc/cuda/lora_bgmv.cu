#include "cuda/lora_bgmv.cuh"

#include "cuda/launch.h"

namespace pss::cuda {

void lora_bgmv(const LoraArgs& op, void* stream) {
  if (!op.num_rows || !op.num_slots || !op.max_rank || !op.in_features || !op.out_features) return;
  const unsigned rows = unsigned(op.num_rows);
  const dim3 shrink(rows, unsigned((op.max_rank + kRanks - 1) / kRanks));
  const dim3 expand(rows, unsigned((op.out_features + kOutputs - 1) / kOutputs));
  PSS_LAUNCH(lora_shrink, shrink, dim3(kRanks * kWarp), 0, stream, op);
  PSS_LAUNCH(lora_expand, expand, dim3(kOutputs), op.max_rank * sizeof(float), stream, op);
}

}  // namespace pss::cuda
