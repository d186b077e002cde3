#define ISA avx512_bf16
#define ISA_NAME "avx512_bf16"
#define OCTAVO_HAS_DPBF16 1
#include "vec_avx512.h"
#include "pairs_avx512.h"
#include "dot_avx512.h"

#include "../kernels/kernels.inl"
