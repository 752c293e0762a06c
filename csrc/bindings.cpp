// The only file that knows Python: tensors arrive as addresses, sizes and strides. The caller keeps them alive.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>

#include "cpu/isa.h"
#include "cpu/lora_bgmv.h"
#ifdef PSS_WITH_CUDA
#include "cuda/device.h"
#endif

namespace py = pybind11;

namespace {

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void lora_bgmv(uintptr_t y, uintptr_t x, uintptr_t lora_a, uintptr_t lora_b, uintptr_t scaling, uintptr_t ranks,
               uintptr_t slot_ids, int64_t num_rows, int64_t num_slots, int64_t max_rank, int64_t in_features,
               int64_t out_features, int64_t y_stride, int64_t x_stride, int64_t a_stride, int64_t b_stride,
               int row_type, int lora_type) {
  pss::lora_bgmv({pointer<void>(y), pointer<void>(x), pointer<void>(lora_a), pointer<void>(lora_b),
                  pointer<float>(scaling), pointer<int32_t>(ranks), pointer<int32_t>(slot_ids), num_rows, num_slots,
                  max_rank, in_features, out_features, y_stride, x_stride, a_stride, b_stride,
                  pss::DType(row_type), pss::DType(lora_type)});
}

int device_count() {
#ifdef PSS_WITH_CUDA
  return pss::cuda::device_count();
#else
  return 0;
#endif
}

bool with_cuda() {
#ifdef PSS_WITH_CUDA
  return true;
#else
  return false;
#endif
}

bool with_openmp() {
#ifdef _OPENMP
  return true;
#else
  return false;
#endif
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "C++ and CUDA kernels of pss_engine. Import torch first: both use one OpenMP runtime.";
  m.def("isa", [] { return pss::isa_name(pss::isa()); }, "Instruction set in use: scalar, neon, avx2 or avx512.");
  m.def("set_isa", &pss::set_isa, "Use another of supported_isas() from now on.");
  m.def("supported_isas", [] {
    std::vector<std::string> names;
    for (pss::Isa level : pss::supported_isas()) names.push_back(pss::isa_name(level));
    return names;
  }, "Instruction sets that this processor runs, lowest first.");
  m.def("with_cuda", &with_cuda, "Whether the CUDA part was built.");
  m.def("with_openmp", &with_openmp, "Whether rows run on several threads.");
  m.def("device_count", &device_count, "CUDA devices that the CUDA part can use; 0 without a driver.");
  m.def("lora_bgmv", &lora_bgmv, py::call_guard<py::gil_scoped_release>());
}
