#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

template <class T>
void every_value_survives(int exponent_bits) {
  const uint16_t infinity = uint16_t(((1 << exponent_bits) - 1) << (15 - exponent_bits));
  for (int bits = 0; bits < 65536; ++bits) {
    const T value{uint16_t(bits)};
    T back;
    from_float(to_float(value), back);
    const bool nan = (bits & 0x7fff) > infinity;
    expect(label("bits", {bits, back.bits}), nan ? (back.bits & 0x7fff) > infinity : back.bits == bits);
  }
}

// Between two neighbours the nearer one is taken, and half way the even one.
template <class T>
void rounds_to_nearest_even(int last) {
  for (int bits = 0; bits < last; ++bits) {
    const double low = to_float(T{uint16_t(bits)}), high = to_float(T{uint16_t(bits + 1)});
    T below, middle, above;
    from_float(float(low + (high - low) * 0.4375), below);
    from_float(float(low + (high - low) * 0.5), middle);
    from_float(float(low + (high - low) * 0.5625), above);
    expect(label("below half", {bits, below.bits}), below.bits == bits);
    expect(label("half", {bits, middle.bits}), middle.bits == bits + (bits & 1));
    expect(label("above half", {bits, above.bits}), above.bits == bits + 1);
  }
}

}  // namespace

PSS_TEST(half_types_round_trip) {
  every_value_survives<bf16>(8);
  every_value_survives<f16>(5);
}

PSS_TEST(half_types_round_to_nearest_even) {
  rounds_to_nearest_even<bf16>(0x7f7f);
  rounds_to_nearest_even<f16>(0x7bff);
}
