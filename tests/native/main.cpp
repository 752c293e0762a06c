// native [ISA...]: every test under each of these instruction sets; by default under all that this processor runs.
#include <exception>

#include "cpu/isa.h"
#include "tests/native/harness.h"

int main(int argc, char** argv) {
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
    pss::test::run_tests(isa);
  }
  return pss::test::verdict();
}
