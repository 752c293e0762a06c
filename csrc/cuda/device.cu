#include "cuda/device.h"

#include <cuda_runtime_api.h>

namespace pss::cuda {
namespace {

__global__ void probe() {}

}  // namespace

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

const char* why_not() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, probe);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

const char* last_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace pss::cuda
