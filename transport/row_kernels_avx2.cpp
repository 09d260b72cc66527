// Row kernels for AVX2 with FMA and F16C. Built with the -m flags for them. There are no masked
// moves of bytes here, so parts of a vector go through a small buffer.
#include <immintrin.h>

#include "transport/row_kernels_variants.hpp"
#include "transport/row_kernels_vector.hpp"

namespace m2n::transport {
namespace {

struct Avx2 {
  struct Pair {
    __m256 a, b;
  };
  static constexpr std::size_t vector_bytes = 32;
  static constexpr std::size_t block = 16;

  static __m256 zero() { return _mm256_setzero_ps(); }
  static __m256 broadcast(float value) { return _mm256_set1_ps(value); }
  static __m256 fma(__m256 w, __m256 y, __m256 acc) { return _mm256_fmadd_ps(w, y, acc); }
  static __m256 add(__m256 x, __m256 y) { return _mm256_add_ps(x, y); }

  // --- bytes ---
  static __m256i load_raw(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static __m256i load_raw_some(const std::byte* from, std::size_t bytes) {
    alignas(32) std::byte buffer[32] = {};
    __builtin_memcpy(buffer, from, bytes);
    return load_raw(buffer);
  }
  static void store_raw_some(std::byte* to, std::size_t bytes, __m256i value) {
    alignas(32) std::byte buffer[32];
    store_raw<false>(buffer, value);
    __builtin_memcpy(to, buffer, bytes);
  }
  template <bool streaming>
  static void store_raw(std::byte* to, __m256i value) {
    if constexpr (streaming) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
    }
  }
  template <DataType type>
  static __m256i add_zero(__m256i x) {
    if constexpr (type == DataType::f32) {
      return _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(x), zero()));
    } else if constexpr (type == DataType::i8) {
      return x;
    } else {
      const __m256i minus_zero = _mm256_set1_epi16(static_cast<short>(0x8000));
      return _mm256_andnot_si256(_mm256_cmpeq_epi16(x, minus_zero), x);
    }
  }

  // --- columns ---
  static __m128i half(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static __m256 widen_bf16(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static __m256 load_f32(const std::byte* from) { return _mm256_castsi256_ps(load_raw(from)); }

  template <DataType type, bool interleaved>
  static Pair load(const std::byte* from) {
    if constexpr (type == DataType::f32) {
      return {load_f32(from), load_f32(from + 32)};
    } else if constexpr (type == DataType::f16) {
      return {_mm256_cvtph_ps(half(from)), _mm256_cvtph_ps(half(from + 16))};
    } else if constexpr (interleaved) {
      __m256i x = load_raw(from);
      asm("" : "+x"(x));  // or GCC loads it twice, as a memory operand of both
      return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
              _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-0x1'0000)))};
    } else {
      return {widen_bf16(half(from)), widen_bf16(half(from + 16))};
    }
  }
  template <DataType type, bool interleaved>
  static Pair load_some(const std::byte* from, std::size_t n) {
    alignas(32) std::byte buffer[block * 4] = {};
    __builtin_memcpy(buffer, from, n * element_bytes(type));
    return load<type, interleaved>(buffer);
  }

  // Rounds to bf16 in the upper half of each lane. Integer arithmetic: denormals are kept.
  static __m256i bf16_in_upper_half(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40'0000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
  }
  // Interleaved and without NaN: rounds all 16 at once, as words. Up if the low word is above half,
  // or half and odd.
  static __m256i bf16_words(Pair value) {
    const __m256i even = _mm256_castps_si256(value.a);
    const __m256i odd = _mm256_castps_si256(value.b);
    const __m256i high = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
    const __m256i low = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
    const __m256i sticky = _mm256_adds_epu16(low, _mm256_and_si256(high, _mm256_set1_epi16(1)));
    // Comparison is signed: move 0x8000 to 0.
    const __m256i up =
        _mm256_cmpgt_epi16(_mm256_xor_si256(sticky, _mm256_set1_epi16(static_cast<short>(0x8000))),
                           _mm256_setzero_si256());
    return _mm256_sub_epi16(high, up);
  }

  template <DataType type, bool interleaved>
  static __m256i narrow(Pair value) {
    if constexpr (type == DataType::f16) {
      constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
      return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm256_cvtps_ph(value.a, nearest)),
                                     _mm256_cvtps_ph(value.b, nearest), 1);
    } else {
      if constexpr (interleaved) {
        const __m256 nan = _mm256_cmp_ps(value.a, value.b, _CMP_UNORD_Q);
        if (__builtin_expect(_mm256_movemask_ps(nan) == 0, 1)) return bf16_words(value);
      }
      const __m256i a = _mm256_srli_epi32(bf16_in_upper_half(value.a), 16);
      const __m256i b = bf16_in_upper_half(value.b);
      if constexpr (interleaved) return _mm256_blend_epi16(a, b, 0xaa);
      // Packing works in 128-bit lanes: put the quarters back in order.
      return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, _mm256_srli_epi32(b, 16)), 0xd8);
    }
  }

  template <DataType type, bool interleaved, bool streaming>
  static void store(std::byte* to, Pair value) {
    if constexpr (type == DataType::f32) {
      store_raw<streaming>(to, _mm256_castps_si256(value.a));
      store_raw<streaming>(to + 32, _mm256_castps_si256(value.b));
    } else {
      store_raw<streaming>(to, narrow<type, interleaved>(value));
    }
  }
  template <DataType type, bool interleaved>
  static void store_some(std::byte* to, std::size_t n, Pair value) {
    alignas(32) std::byte buffer[block * 4];
    store<type, interleaved, false>(buffer, value);
    __builtin_memcpy(to, buffer, n * element_bytes(type));
  }
};

}  // namespace

void copy_avx2(void* to, const void* from, std::size_t bytes) {
  move_row<Avx2, DataType::i8>(static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                               bytes, false);
}

void copy_streaming_avx2(void* to, const void* from, std::size_t bytes) {
  move_row<Avx2, DataType::i8>(static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                               bytes, true);
}

SumFunction sum_avx2(DataType input, DataType output) {
  return sum_of<Avx2>(input, output);
}

}  // namespace m2n::transport
