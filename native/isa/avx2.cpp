#define ISA avx2
#define ISA_NAME "avx2"
#include "vec_avx2.h"
#include "pairs_avx2.h"
#include "dot_avx2.h"

#include "../kernels/kernels.inl"
