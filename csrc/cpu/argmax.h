#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace pss {

// tokens[t] = the first of the largest of logits[t, :]; no NaN. Strides count elements.
struct Argmax {
  int64_t* tokens;      // [T]
  const void* logits;   // [T, V], V at least 1; contiguous within a row
  int64_t num_rows, size, stride;
  DType type;
};
void argmax(const Argmax& op);

}  // namespace pss
