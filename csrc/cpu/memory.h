#pragma once
#include <cstdint>

namespace pss {

// Asks the system to back [address, address + bytes) with huge pages as it is written for the first time; a wish only.
void advise_huge_pages(void* address, int64_t bytes);

// Gives memory that was freed but kept by the allocator back to the system.
void release_free_memory();

}  // namespace pss
