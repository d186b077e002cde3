#define ISA scalar
#define ISA_NAME "scalar"
#include "vec_scalar.h"
#include "pairs_scalar.h"
#include "dot_scalar.h"

#include "../kernels/kernels.inl"
