#pragma once
#include <cstdint>

namespace pss {

// Runs multiply-adds in registers on `threads` threads, as many on each; returns how many there were. Timed from
// outside they are the limit of whatever computes in float with the instruction set in use.
int64_t run_multiply_adds(int64_t rounds, int threads);

// Reads all of the memory once, each thread a part of it; returns the sum of its floats. Timed from outside it is the
// limit of whatever streams weights.
float read_memory(const float* memory, int64_t floats, int threads);

}  // namespace pss
