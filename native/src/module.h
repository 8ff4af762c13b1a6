// The parts of the extension module, one per file module_*.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "sojourn/isa.h"
#include "sojourn/vector_ops.h"

// The instruction set of this name, among those the machine has; std::invalid_argument otherwise.
sojourn::Isa isa_of(const std::string& name);

// The KV type of this name; std::invalid_argument otherwise.
sojourn::KVType kv_type_of(const std::string& name);

void bind_executor(nanobind::module_& m);
void bind_matmul(nanobind::module_& m);
void bind_needs(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_vector(nanobind::module_& m);
