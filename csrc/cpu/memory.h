#pragma once
#include <cstdint>

namespace pss {

// Asks the system to back [address, address + bytes) with huge pages as it is written for the first time; a wish only.
void advise_huge_pages(void* address, int64_t bytes);

}  // namespace pss
