#include "tests/native/harness.h"

int main() {
  pss::test::run_tests("cuda");
  return pss::test::verdict();
}
