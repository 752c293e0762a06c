#include "cuda/device.h"

#include <cuda_runtime_api.h>

namespace pss::cuda {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace pss::cuda
