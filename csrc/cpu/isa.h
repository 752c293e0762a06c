// Which instruction set the CPU kernels use. Chosen once, at the first call, and forced down by PSS_CPU_ISA.
#pragma once
#include <string>
#include <vector>

namespace pss {

enum class Isa : int { scalar, neon, neon_dot, avx2, avx512, avx512_vnni };

// The level in use: the highest that this processor runs, or the one PSS_CPU_ISA names.
// Throws std::invalid_argument if that name is unknown or this processor cannot run it.
Isa isa();

// The levels this processor runs, lowest first; always begins with scalar.
const std::vector<Isa>& supported_isas();

const char* isa_name(Isa level);

// Uses the named level from now on; throws std::invalid_argument as isa() does. For tests and benchmarks.
void set_isa(const std::string& name);

}  // namespace pss
