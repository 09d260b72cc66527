// AVX-512 (F, BW, VL, DQ) for row_kernels_vector.hpp, shared by the two AVX-512 variants. Internal
// linkage for the reason given there. Parts of a vector are moved under a mask, which touches
// nothing outside it.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

// GCC's own AVX-512 header starts undefined vectors as `x = x`, and warns about it at -O2.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "transport/row_kernels_vector.hpp"

namespace m2n::transport {
namespace {

// Rounds to bf16 in the upper half of each lane. Integer arithmetic: denormals are kept.
inline __m512i bf16_in_upper_half(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40'0000));
}

// 32 values as bf16 in column order.
template <bool interleaved>
inline __m512i bf16_from_any_pair(__m512 a, __m512 b) {
  const __m512i first = bf16_in_upper_half(a);
  const __m512i second = bf16_in_upper_half(b);
  if constexpr (interleaved) {
    return _mm512_mask_blend_epi16(0xaaaa'aaaau, _mm512_srli_epi32(first, 16), second);
  } else {
    // Words 1, 3, ... of first, then of second.
    const __m512i index = _mm512_add_epi32(
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(0x0004'0004)),
        _mm512_set1_epi32(0x0003'0001));
    return _mm512_permutex2var_epi16(first, index, second);
  }
}

template <bool interleaved>
inline __m512i bf16_from_pair(__m512 a, __m512 b) {
  if constexpr (interleaved) {
    if (__builtin_expect(_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) == 0, 1)) {
      // No NaN: round all 32 at once, as words. Up if the low word is above half, or half and odd.
      const __m512i even = _mm512_castps_si512(a);
      const __m512i odd = _mm512_castps_si512(b);
      const __m512i high = _mm512_mask_blend_epi16(0xaaaa'aaaau, _mm512_srli_epi32(even, 16), odd);
      const __m512i low = _mm512_mask_blend_epi16(0xaaaa'aaaau, even, _mm512_slli_epi32(odd, 16));
      const __m512i sticky = _mm512_adds_epu16(low, _mm512_and_si512(high, _mm512_set1_epi16(1)));
      const __mmask32 up =
          _mm512_cmpgt_epu16_mask(sticky, _mm512_set1_epi16(static_cast<short>(0x8000)));
      return _mm512_mask_sub_epi16(high, up, high, _mm512_set1_epi16(-1));
    }
  }
  return bf16_from_any_pair<interleaved>(a, b);
}

struct Avx512 {
  struct Pair {
    __m512 a, b;
  };
  static constexpr std::size_t vector_bytes = 64;
  static constexpr std::size_t block = 32;

  static __m512 zero() { return _mm512_setzero_ps(); }
  static __m512 broadcast(float value) { return _mm512_set1_ps(value); }
  static __m512 fma(__m512 w, __m512 y, __m512 acc) { return _mm512_fmadd_ps(w, y, acc); }
  static __m512 add(__m512 x, __m512 y) { return _mm512_add_ps(x, y); }

  // --- bytes ---
  static __m512i load_raw(const std::byte* from) { return _mm512_loadu_si512(from); }
  static __mmask64 first_bytes(std::size_t bytes) { return (std::uint64_t{1} << bytes) - 1; }
  static __m512i load_raw_some(const std::byte* from, std::size_t bytes) {
    return _mm512_maskz_loadu_epi8(first_bytes(bytes), from);
  }
  static void store_raw_some(std::byte* to, std::size_t bytes, __m512i value) {
    _mm512_mask_storeu_epi8(to, first_bytes(bytes), value);
  }
  template <bool streaming>
  static void store_raw(std::byte* to, __m512i value) {
    if constexpr (streaming) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value);
    } else {
      _mm512_storeu_si512(to, value);
    }
  }
  template <DataType type>
  static __m512i add_zero(__m512i x) {
    if constexpr (type == DataType::f32) {
      return _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(x), zero()));
    } else if constexpr (type == DataType::i8) {
      return x;
    } else {
      const __m512i minus_zero = _mm512_set1_epi16(static_cast<short>(0x8000));
      return _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(x, minus_zero), x);
    }
  }

  // --- columns ---
  // 32 columns of a 16-bit type.
  template <DataType type, bool interleaved>
  static Pair widen(__m512i x) {
    if constexpr (interleaved) {
      asm("" : "+v"(x));  // or GCC loads it twice, as a memory operand of both
      return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
              _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-0x1'0000)))};
    } else {
      return widen_halves<type>(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    }
  }
  template <DataType type>
  static Pair widen_halves(__m256i low, __m256i high) {
    if constexpr (type == DataType::f16) {
      return {_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)};
    } else {
      return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16)),
              _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16))};
    }
  }

  template <DataType type, bool interleaved>
  static Pair load(const std::byte* from) {
    if constexpr (type == DataType::f32) {
      return {_mm512_loadu_ps(from), _mm512_loadu_ps(from + 64)};
    } else if constexpr (interleaved) {
      return widen<type, true>(load_raw(from));
    } else {
      return widen_halves<type>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
                                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32)));
    }
  }

  static __mmask32 first_columns(std::size_t n) { return (std::uint32_t{1} << n) - 1; }
  static __mmask16 low_half(__mmask32 mask) { return static_cast<__mmask16>(mask & 0xffffu); }
  static __mmask16 high_half(__mmask32 mask) { return static_cast<__mmask16>(mask >> 16); }

  template <DataType type, bool interleaved>
  static Pair load_some(const std::byte* from, std::size_t n) {
    const __mmask32 mask = first_columns(n);
    if constexpr (type == DataType::f32) {
      return {_mm512_maskz_loadu_ps(low_half(mask), from),
              _mm512_maskz_loadu_ps(high_half(mask), from + 64)};
    } else {
      return widen<type, interleaved>(_mm512_maskz_loadu_epi16(mask, from));
    }
  }

  static __m512i f16_from_pair(Pair value) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(value.a, nearest)),
                              _mm512_cvtps_ph(value.b, nearest), 1);
  }
  template <bool interleaved>
  static __m512i to_bf16(Pair value) {
    return bf16_from_pair<interleaved>(value.a, value.b);
  }
};

// Adds the stores; Rounding::to_bf16 is where the variants differ.
template <class Rounding>
struct Avx512Stores : Rounding {
  using typename Rounding::Pair;

  template <DataType type, bool interleaved>
  static __m512i narrow(Pair value) {
    if constexpr (type == DataType::f16) {
      return Rounding::f16_from_pair(value);
    } else {
      return Rounding::template to_bf16<interleaved>(value);
    }
  }
  template <DataType type, bool interleaved, bool streaming>
  static void store(std::byte* to, Pair value) {
    if constexpr (type == DataType::f32) {
      Rounding::template store_raw<streaming>(to, _mm512_castps_si512(value.a));
      Rounding::template store_raw<streaming>(to + 64, _mm512_castps_si512(value.b));
    } else {
      Rounding::template store_raw<streaming>(to, narrow<type, interleaved>(value));
    }
  }
  template <DataType type, bool interleaved>
  static void store_some(std::byte* to, std::size_t n, Pair value) {
    const __mmask32 mask = Rounding::first_columns(n);
    if constexpr (type == DataType::f32) {
      _mm512_mask_storeu_ps(to, Rounding::low_half(mask), value.a);
      _mm512_mask_storeu_ps(to + 64, Rounding::high_half(mask), value.b);
    } else {
      _mm512_mask_storeu_epi16(to, mask, narrow<type, interleaved>(value));
    }
  }
};

}  // namespace
}  // namespace m2n::transport

#endif
