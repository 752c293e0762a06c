#include <cmath>

#include "cpu/argmax.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

PSS_TEST(argmax_takes_the_first_of_the_largest) {
  for (const DType type : kTypes)
    for (const int64_t size : {1, 3, 64, 2047, 2049, 5000}) {
      Random random(size);
      const int64_t rows = 3, stride = size + 7;
      Tensor logits = random_rows(random, type, rows, size, stride);
      for (const int64_t at : {size / 2, size - 1}) logits.set(stride + at, 9.0f);
      for (int64_t i = 0; i < size; ++i) logits.set(2 * stride + i, -INFINITY);
      std::vector<int64_t> tokens(rows, -1);
      argmax({tokens.data(), logits.data(), rows, size, stride, type});
      int64_t expected = 0;
      for (int64_t i = 0; i < size; ++i)
        if (logits[i] > logits[expected]) expected = i;
      expect(label("largest", {size}), tokens[0] == expected);
      expect(label("first of two", {size}), tokens[1] == size / 2);
      expect(label("of nothing but -inf", {size}), tokens[2] == 0);
    }
}

PSS_TEST(argmax_of_nan_stays_in_the_row) {
  const Tensor logits(DType::f32, 40);
  int64_t token = -1;
  argmax({&token, logits.data(), 1, 40, 40, DType::f32});
  expect("inside", token >= 0 && token < 40);
}
