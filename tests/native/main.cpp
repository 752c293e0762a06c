// native_tests [ISA...]: every test under each of these instruction sets; by default under all that this processor runs.
#include <exception>

#include "cpu/isa.h"
#include "tests/native/harness.h"

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

}  // namespace pss::test

int main(int argc, char** argv) {
  using namespace pss::test;
  std::vector<std::string> isas(argv + 1, argv + argc);
  if (isas.empty())
    for (const pss::Isa level : pss::supported_isas()) isas.push_back(pss::isa_name(level));
  for (const std::string& isa : isas) {
    try {
      pss::set_isa(isa);
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
      return 2;
    }
    comparisons = 0;
    for (const Test& test : tests()) {
      running = isa + " " + test.name;
      try {
        test.run();
      } catch (const std::exception& error) {
        fail(error.what());
      }
    }
    std::printf("%s: %zu tests, %lld comparisons\n", isa.c_str(), tests().size(), static_cast<long long>(comparisons));
  }
  std::printf("%lld failures\n", static_cast<long long>(failures));
  return failures ? 1 : 0;
}
