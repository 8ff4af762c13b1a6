// The parts of the extension module, one per file module_*.cpp.
#pragma once

#include <nanobind/nanobind.h>

void bind_executor(nanobind::module_& m);
void bind_matmul(nanobind::module_& m);
void bind_vector(nanobind::module_& m);
