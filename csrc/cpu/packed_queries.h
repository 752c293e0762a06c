// Queries as the kernels of retrieve_topk read them, and how much of the corpus they hold at a time.
#pragma once
#include <cstdint>
#include <vector>

namespace pss {

constexpr int64_t kLaneBlock = 16;
constexpr int64_t kDenseTile = 64;        // passages whose scores are held at a time
constexpr int64_t kDenseScratchRows = 4;  // rows of float that dense_scores may use
constexpr int64_t kSparseTile = 8192;     // passages whose sums are held at a time

// Scores of one passage stand `lanes` apart.
struct PackedQueries {
  std::vector<float> floats;
  std::vector<int16_t> shorts;
  std::vector<int8_t> bytes;
  std::vector<int32_t> bias;
  int64_t lanes;
};

}  // namespace pss
