#include "cpu/isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace pss {
namespace {

std::atomic<int> chosen{-1};

std::vector<Isa> detect() {
  std::vector<Isa> levels{Isa::scalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // F16C came with AVX2 on every processor that has both AVX2 and FMA.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    levels.push_back(Isa::avx2);
#ifdef PSS_SIMDE
    levels.push_back(Isa::avx512);
    levels.push_back(Isa::avx512_vnni);
#else
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      levels.push_back(Isa::avx512);
      if (__builtin_cpu_supports("avx512vnni")) levels.push_back(Isa::avx512_vnni);
    }
#endif
  }
#elif defined(__aarch64__)
  levels.push_back(Isa::neon);  // part of the baseline
#if defined(__linux__)
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) levels.push_back(Isa::neon_dot);
#endif
#endif
  return levels;
}

Isa named(const std::string& name, const char* source) {
  std::string choices;
  for (Isa level : supported_isas()) {
    if (name == isa_name(level)) return level;
    choices += std::string(choices.empty() ? "" : ", ") + isa_name(level);
  }
  throw std::invalid_argument(std::string(source) + "=" + name + " cannot be used here; this processor runs: " + choices);
}

}  // namespace

const std::vector<Isa>& supported_isas() {
  static const std::vector<Isa> levels = detect();
  return levels;
}

const char* isa_name(Isa level) {
  switch (level) {
    case Isa::neon: return "neon";
    case Isa::neon_dot: return "neon_dot";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_vnni: return "avx512_vnni";
    default: return "scalar";
  }
}

Isa isa() {
  int level = chosen.load(std::memory_order_relaxed);
  if (level < 0) {
    const char* name = std::getenv("PSS_CPU_ISA");
    level = int(name && *name ? named(name, "PSS_CPU_ISA") : supported_isas().back());
    chosen.store(level, std::memory_order_relaxed);
  }
  return Isa(level);
}

void set_isa(const std::string& name) { chosen.store(int(named(name, "isa")), std::memory_order_relaxed); }

}  // namespace pss
