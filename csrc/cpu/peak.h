#pragma once
#include <cstdint>

namespace pss {

// Runs multiply-adds in registers on `threads` threads, as many on each; returns how many there were. Timed from
// outside they are the limit of whatever computes in float with the instruction set in use.
int64_t run_multiply_adds(int64_t rounds, int threads);

}  // namespace pss
