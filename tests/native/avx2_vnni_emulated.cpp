// The linear kernels of the table avx2_vnni for processors with AVX2 only: vpdpbusd is computed without the instruction, exactly.
#include <immintrin.h>

static inline __m256i emulated_dpbusd(__m256i sum, __m256i w, __m256i a) {
    const __m256i low = _mm256_set1_epi16(0xff), even = _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8), odd = _mm256_srai_epi16(a, 8);
    const __m256i evens = _mm256_madd_epi16(_mm256_and_si256(w, low), even), odds = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), odd);
    return _mm256_add_epi32(sum, _mm256_add_epi32(evens, odds));
}
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd

#define ISA avx2_vnni_emulated
#define ISA_NAME "avx2_vnni_emulated"
#include "isa/vec_avx2.h"
#include "isa/pairs_avx2.h"
#include "isa/dot_avx2_vnni.h"

#include "linear_table.inl"
