// The CUDA part, as seen by code that is compiled without nvcc.
#pragma once

namespace pss::cuda {

// CUDA devices that can be used; 0 without a driver or a device.
int device_count();

// Why no kernel of this build can run on the current device: no driver, or none of its targets. Empty if they can.
const char* why_not();

// What went wrong since the last call; null if nothing did.
const char* last_error();

}  // namespace pss::cuda
