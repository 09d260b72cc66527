// Row kernels for AVX-512 with bf16 instructions. Those flush denormals to zero, so a vector that
// may have any is rounded with integers instead. Built with the -m flags for them.
#include "transport/row_kernels_avx512.hpp"
#include "transport/row_kernels_variants.hpp"

namespace m2n::transport {
namespace {

struct NativeRounding : Avx512 {
  template <bool interleaved>
  static __m512i to_bf16(Pair value) {
    const auto halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(value.b, value.a));
    // A zero in the result may be a flushed denormal. True zeros are rare enough to go that way
    // too.
    const __mmask32 zeros = _mm512_testn_epi16_mask(halves, _mm512_set1_epi16(0x7fff));
    if (__builtin_expect(zeros != 0, 0)) return bf16_from_pair<interleaved>(value.a, value.b);
    if constexpr (!interleaved) return halves;
    // Word 2 i is word i of a, word 2 i + 1 is word i of b.
    const __m512i index = _mm512_add_epi32(
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(0x0001'0001)),
        _mm512_set1_epi32(0x0010'0000));
    return _mm512_permutexvar_epi16(index, halves);
  }
};

}  // namespace

SumFunction sum_avx512_bf16(DataType input, DataType output) {
  return sum_of<Avx512Stores<NativeRounding>>(input, output);
}

}  // namespace m2n::transport
