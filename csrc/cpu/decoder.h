// Decoder layers of a serving step in one parallel region: what models/transformer.py computes op by op, bit for bit.
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/dtype.h"
#include "cpu/lora_bgmv.h"
#include "cpu/paged_attention.h"
#include "cpu/weight_format.h"

namespace pss {

// Rows of one packed weight; a projection whose parts came in different formats has several.
struct ProjectionPart {
  const void* packed;
  const float* bias;   // [out_features] or null
  int64_t out_features;
  WeightFormat format;
};

// A state's factors for a slice of a projection, as LoraBgmv has them; x, y, slot_ids and the row counts are the step's.
struct ProjectionTarget {
  LoraBgmv op;
  int64_t offset;   // of its columns in the projection
};

struct Projection {
  std::vector<ProjectionPart> parts;
  std::vector<ProjectionTarget> targets;
  int64_t in_features, out_features;
};

struct DecoderLayer {
  const float *input_norm, *post_norm;   // [H]
  Projection qkv, o, gate_up, down;
  void *k_cache, *v_cache;               // [num_blocks, P, K, D]
  int64_t window;
};

struct DecoderShape {
  int64_t hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, half_rotary;
  int64_t num_blocks, block_size;
  DType cache_type;
  float eps, scale;
  bool int8_rows;   // for the quantised parts
};

// The rows of one forward; T tokens of B sequences.
struct DecoderStep {
  float* hidden;                 // [T, H] contiguous, in and out
  const float *cos, *sin;        // [T, half_rotary]
  const int64_t* kv_rows;        // [T]
  const int32_t* block_tables;   // [B, max_blocks]
  const int32_t* query_starts;   // [B + 1]
  const int32_t* context_lens;   // [B]
  const int32_t* slot_ids;       // [T] or null: no states
  int64_t num_tokens, num_rows, max_blocks;
};

class Decoder {
 public:
  Decoder(const DecoderShape& shape, std::vector<DecoderLayer> layers) : shape_(shape), layers_(std::move(layers)) {}

  // Layers [first, last) in place. Returns the number of projection slices that had states added. Throws
  // std::invalid_argument for an index out of range; hidden and caches are untouched then.
  int64_t run(const DecoderStep& step, int64_t first, int64_t last) const;

 private:
  DecoderShape shape_;
  std::vector<DecoderLayer> layers_;
};

}  // namespace pss
