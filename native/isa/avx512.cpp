#define ISA avx512
#define ISA_NAME "avx512"
#include "vec_avx512.h"
#include "pairs_avx512.h"
#include "dot_avx512.h"

#include "../kernels/kernels.inl"
