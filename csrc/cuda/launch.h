// The CUDA kernels as the host calls them: asynchronous, on the stream given. Errors show in device.h's check().
#pragma once
#include "cuda/args.h"

namespace pss::cuda {

void lora_bgmv(const LoraArgs& op, void* stream);
void paged_attention(const AttentionArgs& op, void* stream);
void store_kv(const StoreArgs& op, void* stream);
void copy_segments(const CopyArgs& op, void* stream);
void dense_candidates(const DenseArgs& op, void* stream);
void sparse_candidates(const SparseArgs& op, void* stream);

}  // namespace pss::cuda
