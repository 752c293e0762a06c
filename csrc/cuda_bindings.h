#pragma once
#include <pybind11/pybind11.h>

// The submodule `cuda` where the CUDA part is built; nothing where it is not.
void add_cuda(pybind11::module_& m);
