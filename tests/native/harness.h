// A harness for the kernels without Python: each test compares a kernel with its formula written as plain loops.
//
//   PSS_TEST(name) { ... expect_close("what", got, expected, tolerance); }
//
// A new kernel needs one more file test_NAME.cpp beside this one; main.cpp runs it under every instruction set.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/dtype.h"

namespace pss::test {

struct Test {
  const char* name;
  void (*run)();
};
std::vector<Test>& tests();
void fail(const std::string& message);
void count_comparison();

// Runs every test and prints how many; then verdict() is the exit code.
void run_tests(const std::string& label);
int verdict();

struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

#define PSS_TEST(name)                                                 \
  static void name();                                                  \
  static const pss::test::Registration registered_##name{#name, name}; \
  static void name()

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
inline const char* name_of(DType type) { return type == DType::f32 ? "f32" : type == DType::bf16 ? "bf16" : "f16"; }

// Of values near 1: half a step of the type, and sums in another order.
inline double tolerance(DType type) { return type == DType::f32 ? 2e-5 : type == DType::bf16 ? 1.6e-2 : 2e-3; }

// Elements of one of the types, in memory of exactly their size: the sanitizer sees a step beyond either end.
class Tensor {
 public:
  Tensor(DType type, int64_t count, float value = NAN) : type_(type), bytes_(count * (type == DType::f32 ? 4 : 2)) {
    for (int64_t i = 0; i < count; ++i) set(i, value);
  }
  void set(int64_t i, float value) {
    switch (type_) {
      case DType::f32: return put<float>(i, value);
      case DType::bf16: return put<bf16>(i, value);
      case DType::f16: return put<f16>(i, value);
    }
  }
  float operator[](int64_t i) const {
    switch (type_) {
      case DType::f32: return get<float>(i);
      case DType::bf16: return get<bf16>(i);
      default: return get<f16>(i);
    }
  }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  int64_t size() const { return int64_t(bytes_.size()) / (type_ == DType::f32 ? 4 : 2); }

 private:
  template <class T>
  void put(int64_t i, float value) {
    T element;
    from_float(value, element);
    std::memcpy(bytes_.data() + i * sizeof(T), &element, sizeof(T));
  }
  template <class T>
  float get(int64_t i) const {
    T element;
    std::memcpy(&element, bytes_.data() + i * sizeof(T), sizeof(T));
    return to_float(element);
  }

  DType type_;
  std::vector<unsigned char> bytes_;
};

// Uniform in [-1, 1), the same in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  float operator()() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return float(int64_t(state_ >> 40) - (1 << 23)) / float(1 << 23);
  }
  int64_t below(int64_t limit) { return int64_t((operator()() + 1) / 2 * float(limit)) % limit; }

 private:
  uint64_t state_;
};

// `rows` rows of `size` values, `stride` apart; what lies between two rows stays NaN.
inline Tensor random_rows(Random& random, DType type, int64_t rows, int64_t size, int64_t stride) {
  Tensor tensor(type, rows ? (rows - 1) * stride + size : 0);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < size; ++i) tensor.set(t * stride + i, random());
  return tensor;
}

inline void expect_close(const std::string& what, double got, double expected, double tolerance) {
  count_comparison();
  if (!(std::fabs(got - expected) <= tolerance * std::fmax(1.0, std::fabs(expected))))
    fail(what + ": " + std::to_string(got) + " instead of " + std::to_string(expected));
}

inline void expect(const std::string& what, bool holds) {
  count_comparison();
  if (!holds) fail(what);
}

inline void expect_refused(const std::string& what, const std::string& part, const std::function<void()>& call) {
  count_comparison();
  try {
    call();
  } catch (const std::invalid_argument& error) {
    if (std::string(error.what()).find(part) == std::string::npos) fail(what + ": the reason is " + error.what());
    return;
  }
  fail(what + ": not refused");
}

inline std::string label(const char* name, std::initializer_list<int64_t> sizes) {
  std::string text = name;
  for (const int64_t size : sizes) text += " " + std::to_string(size);
  return text;
}

}  // namespace pss::test
