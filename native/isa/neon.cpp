#define ISA neon
#define ISA_NAME "neon"
#include "vec_neon.h"
#include "pairs_neon.h"
#include "dot_neon.h"

#include "../kernels/kernels.inl"
