// What the binding files share. There is one of them a topic; none does arithmetic.
#pragma once

#include <stdexcept>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "dispatch.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace octavo {

template <class T>
using Array1 = nb::ndarray<T, nb::numpy, nb::shape<-1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<T, nb::numpy, nb::shape<-1, -1>, nb::c_contig, nb::device::cpu>;

// What a caller hands in is checked before it is trusted: native code has no later line of defence.
inline void require(bool fine, const char* what) {
    if (!fine) throw std::invalid_argument(what);
}

inline Act act_from(int number) {
    require(number >= 0 && number <= static_cast<int>(Act::s8), "there is no form of activations of this number");
    return static_cast<Act>(number);
}

void bind_weights(nb::module_& m);    // pack(), PackedWeight
void bind_attention(nb::module_& m);  // KVCache
void bind_sampler(nb::module_& m);    // SampleInputs
void bind_program(nb::module_& m);    // Program, StepInputs
void bind_steps(nb::module_& m);      // StepThread
void bind_text(nb::module_& m);       // strings of a file
void bind_grammar(nb::module_& m);    // llguidance, masks
void bind_probe(nb::module_& m);      // what the machine can do

}  // namespace octavo
