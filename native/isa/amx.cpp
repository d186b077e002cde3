#define ISA amx
#define ISA_NAME "amx"
#define OCTAVO_HAS_DPBF16 1
#define OCTAVO_HAS_AMX 1
#include "vec_avx512.h"
#include "pairs_avx512.h"
#include "dot_avx512.h"
#include "tiles_amx.h"

#include "../kernels/kernels.inl"
