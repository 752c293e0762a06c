// The CUDA part, as seen by code that is compiled without nvcc.
#pragma once

namespace pss::cuda {

// CUDA devices that can be used; 0 without a driver or a device.
int device_count();

}  // namespace pss::cuda
