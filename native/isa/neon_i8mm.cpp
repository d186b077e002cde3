#define ISA neon_i8mm
#define ISA_NAME "neon_i8mm"
#define OCTAVO_HAS_I8MM 1
#define OCTAVO_HAS_DPBF16 1
#include "vec_neon.h"
#include "pairs_neon.h"
#include "dot_neon.h"

#include "../kernels/kernels.inl"
