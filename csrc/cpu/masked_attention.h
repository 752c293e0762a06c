#pragma once
#include <cstdint>

namespace pss {

// Softmax attention of one sequence under a mask, and its gradients; formulas in ops/masked_attention.py. Head n sees
// key head n / (num_heads / num_kv_heads). Strides count floats between rows; the heads of a row are contiguous.
struct MaskedAttention {
  const float* q;   // [t, N, D]
  const float* k;   // [t, K, D]
  const float* v;
  int64_t num_rows, num_heads, num_kv_heads, head_dim;
  int64_t q_stride, k_stride, v_stride;
  float scale;
};

// Writes shares [N, t, t], the probabilities, and out [t, N, D], both contiguous. mask [t, t]: 0 where a row sees
// another, -inf where not; every row sees one.
void masked_attention(const MaskedAttention& op, const float* mask, int64_t mask_stride, float* shares, float* out);

// Writes the gradients of q, k and v, whose rows are grads_stride apart; dy [t, N, D].
void masked_attention_backward(const MaskedAttention& op, const float* dy, int64_t dy_stride, const float* shares,
                               float* dq, float* dk, float* dv, int64_t grads_stride);

}  // namespace pss
