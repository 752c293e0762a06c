#include "tests/native/harness.h"

#include <exception>

namespace pss::test {
namespace {
int64_t failures = 0, comparisons = 0;
std::string running;
constexpr int64_t kShown = 20;
}  // namespace

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

void count_comparison() { ++comparisons; }

void fail(const std::string& message) {
  if (++failures <= kShown) std::printf("FAILED %s: %s\n", running.c_str(), message.c_str());
}

void run_tests(const std::string& label) {
  comparisons = 0;
  for (const Test& test : tests()) {
    running = label + " " + test.name;
    try {
      test.run();
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }
  std::printf("%s: %zu tests, %lld comparisons\n", label.c_str(), tests().size(), static_cast<long long>(comparisons));
}

int verdict() {
  std::printf("%lld failures\n", static_cast<long long>(failures));
  return failures ? 1 : 0;
}

}  // namespace pss::test
