#define ISA avx2_vnni
#define ISA_NAME "avx2_vnni"
#include "vec_avx2.h"
#include "pairs_avx2.h"
#include "dot_avx2_vnni.h"

#include "../kernels/kernels.inl"
