// Compiles the file that PSS_EACH_ISA names once per instruction set, in the namespaces pss::scalar, pss::avx2, ...
// Every #include of that file must come before this one: what is parsed inside a target region may use its
// instructions, and an inline function of a shared header compiled there could be the copy that the linker keeps.
#include "cpu/dtype.h"
#include "cpu/isa.h"
#if defined(__x86_64__) && defined(PSS_SIMDE)
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define PSS_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define PSS_TARGET_BEGIN(features) \
  PSS_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define PSS_TARGET_END _Pragma("clang attribute pop")
#else
#define PSS_TARGET_BEGIN(features) _Pragma("GCC push_options") PSS_PRAGMA(GCC target(features))
#define PSS_TARGET_END _Pragma("GCC pop_options")
// GCC 12 warns of its own avx512fintrin.h (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace pss {

#define PSS_DOT 0
namespace scalar {
namespace {
#include "cpu/vec/scalar.h"
#include PSS_EACH_ISA
}  // namespace
}  // namespace scalar

#if defined(__x86_64__)
PSS_TARGET_BEGIN("avx2,fma,f16c")
namespace avx2 {
namespace {
#include "cpu/vec/avx2.h"
#include PSS_EACH_ISA
}  // namespace
}  // namespace avx2
PSS_TARGET_END

// PSS_SIMDE: its instructions in terms of AVX2, so that tests run them on a processor without AVX-512.
#ifdef PSS_SIMDE
#define PSS_AVX512_FEATURES "avx2,fma,f16c"
#define PSS_VNNI_FEATURES PSS_AVX512_FEATURES
#else
#define PSS_AVX512_FEATURES "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
#define PSS_VNNI_FEATURES "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
#endif
PSS_TARGET_BEGIN(PSS_AVX512_FEATURES)
namespace avx512 {
namespace {
#include "cpu/vec/avx512.h"
#include PSS_EACH_ISA
}  // namespace
}  // namespace avx512
PSS_TARGET_END

#undef PSS_DOT
#define PSS_DOT 1
PSS_TARGET_BEGIN(PSS_VNNI_FEATURES)
namespace avx512_vnni {
namespace {
#include "cpu/vec/avx512.h"
#include PSS_EACH_ISA
}  // namespace
}  // namespace avx512_vnni
PSS_TARGET_END
#elif defined(__aarch64__)
namespace neon {
namespace {
#include "cpu/vec/neon.h"
#include PSS_EACH_ISA
}  // namespace
}  // namespace neon

#undef PSS_DOT
#define PSS_DOT 1
PSS_TARGET_BEGIN("arch=armv8.2-a+dotprod")
namespace neon_dot {
namespace {
#include "cpu/vec/neon.h"
#include PSS_EACH_ISA
}  // namespace
}  // namespace neon_dot
PSS_TARGET_END
#endif

}  // namespace pss

// The version of `function` for the instruction set in use.
#if defined(__x86_64__)
#define PSS_SELECT_ISA(function)                                     \
  (pss::isa() == pss::Isa::avx512_vnni ? &pss::avx512_vnni::function \
   : pss::isa() == pss::Isa::avx512    ? &pss::avx512::function      \
   : pss::isa() == pss::Isa::avx2      ? &pss::avx2::function        \
                                       : &pss::scalar::function)
#elif defined(__aarch64__)
#define PSS_SELECT_ISA(function)                               \
  (pss::isa() == pss::Isa::neon_dot ? &pss::neon_dot::function \
   : pss::isa() == pss::Isa::neon   ? &pss::neon::function     \
                                    : &pss::scalar::function)
#else
#define PSS_SELECT_ISA(function) (&pss::scalar::function)
#endif
