// Vector kernels, chosen by what this CPU has. bf16 is taken apart into even and odd elements (a
// shift and a mask), which needs no widening loads.
#include "perf/kernels.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
// The compiler takes its own undefined-value intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace m2n::perf {

#if defined(__x86_64__)
namespace {

// A plain sum is one with weights of 1: no choice in the loop over the rows.
constexpr auto ones = [] {
  std::array<float, 256> all{};
  all.fill(1.0F);
  return all;
}();
const float* weights_of(const Sum& s) {
  return s.weights != nullptr ? s.weights : ones.data();
}

void fence_stores() {
  _mm_sfence();
}

// The last, incomplete step of a row goes through the plain code.
void finish(const Sum& s, std::size_t done, std::size_t element_bytes, void (*plain)(const Sum&)) {
  if (done == s.columns) return;
  const void* rows[256];
  Sum rest = s;
  for (std::uint32_t i = 0; i < s.count; ++i) {
    rows[i] = static_cast<const std::byte*>(s.rows[i]) + done * element_bytes;
  }
  rest.rows = rows;
  rest.out = static_cast<std::byte*>(s.out) + done * element_bytes;
  rest.columns = s.columns - done;
  plain(rest);
}

bool aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

#define M2N_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define M2N_INLINE __attribute__((always_inline)) inline

M2N_AVX512 M2N_INLINE void store_512(void* to, __m512i value, bool streaming) {
  if (streaming) {
    _mm512_stream_si512(static_cast<__m512i*>(to), value);
  } else {
    _mm512_storeu_si512(to, value);
  }
}

M2N_AVX512 void copy_512(void* to, const void* from, std::size_t bytes) {
  auto* t = static_cast<std::byte*>(to);
  const auto* f = static_cast<const std::byte*>(from);
  std::size_t b = 0;
  for (; b + 256 <= bytes; b += 256) {
    const __m512i v0 = _mm512_loadu_si512(f + b);
    const __m512i v1 = _mm512_loadu_si512(f + b + 64);
    const __m512i v2 = _mm512_loadu_si512(f + b + 128);
    const __m512i v3 = _mm512_loadu_si512(f + b + 192);
    _mm512_storeu_si512(t + b, v0);
    _mm512_storeu_si512(t + b + 64, v1);
    _mm512_storeu_si512(t + b + 128, v2);
    _mm512_storeu_si512(t + b + 192, v3);
  }
  std::memcpy(t + b, f + b, bytes - b);
}

M2N_AVX512 void copy_streaming_512(void* to, const void* from, std::size_t bytes) {
  if (!aligned(to, 64)) return copy_512(to, from, bytes);
  auto* t = static_cast<std::byte*>(to);
  const auto* f = static_cast<const std::byte*>(from);
  std::size_t b = 0;
  for (; b + 64 <= bytes; b += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(t + b), _mm512_loadu_si512(f + b));
  }
  std::memcpy(t + b, f + b, bytes - b);
}

template <bool streaming>
M2N_AVX512 void merge_512(void* to, const void* const* rows, std::uint32_t count,
                          std::size_t bytes) {
  if (count == 0) return;
  auto* t = static_cast<std::byte*>(to);
  std::size_t b = 0;
  for (; b + 256 <= bytes; b += 256) {
    __m512i acc[4];
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) {
      acc[j] = _mm512_loadu_si512(static_cast<const std::byte*>(rows[0]) + b + 64 * j);
    }
    for (std::uint32_t i = 1; i < count; ++i) {
      const auto* row = static_cast<const std::byte*>(rows[i]) + b;
#pragma GCC unroll 8
      for (int j = 0; j < 4; ++j) {
        acc[j] = _mm512_xor_si512(acc[j], _mm512_loadu_si512(row + 64 * j));
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) store_512(t + b + 64 * j, acc[j], streaming && aligned(to, 64));
  }
  std::memcpy(t + b, static_cast<const std::byte*>(rows[0]) + b, bytes - b);
}

M2N_AVX512 void fill_512(void* to, const void* pattern, std::size_t bytes) {
  const auto* p = static_cast<const std::byte*>(pattern);
  const __m512i v0 = _mm512_loadu_si512(p);
  const __m512i v1 = _mm512_loadu_si512(p + 64);
  const __m512i v2 = _mm512_loadu_si512(p + 128);
  const __m512i v3 = _mm512_loadu_si512(p + 192);
  auto* t = static_cast<std::byte*>(to);
  std::size_t b = 0;
  for (; b + 256 <= bytes; b += 256) {
    _mm512_storeu_si512(t + b, v0);
    _mm512_storeu_si512(t + b + 64, v1);
    _mm512_storeu_si512(t + b + 128, v2);
    _mm512_storeu_si512(t + b + 192, v3);
  }
  std::memcpy(t + b, p, bytes - b);
}

M2N_AVX512 M2N_INLINE __m512 even_512(__m512i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
M2N_AVX512 M2N_INLINE __m512 odd_512(__m512i x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(~0xffff)));
}

M2N_AVX512 M2N_INLINE __m512i round_512(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, last), _mm512_set1_epi32(0x7fff));
}

// Sixteen even and sixteen odd sums, rounded and put in order.
template <bool native>
M2N_AVX512 M2N_INLINE __m512i pack_512(__m512 even, __m512 odd, __m512i order) {
  if (native) {
    // Spelled out, as the intrinsic would ask for a target of its own, and so for its own callers.
    __m512i halves;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(odd), "v"(even));
    return _mm512_permutexvar_epi16(order, halves);
  }
  return _mm512_mask_blend_epi16(0xaaaaaaaaU, _mm512_srli_epi32(round_512(even), 16),
                                 round_512(odd));
}

M2N_AVX512 M2N_INLINE void add_512(__m512 (&acc)[8], const std::byte* row, __m512 weight) {
#pragma GCC unroll 8
  for (int j = 0; j < 4; ++j) {
    __m512i x = _mm512_loadu_si512(row + 64 * j);
    asm("" : "+v"(x));  // one load for both halves, which the compiler would make two
    acc[2 * j] = _mm512_fmadd_ps(weight, even_512(x), acc[2 * j]);
    acc[2 * j + 1] = _mm512_fmadd_ps(weight, odd_512(x), acc[2 * j + 1]);
  }
}

template <bool native>
M2N_AVX512 void sum_bf16_512(const Sum& s) {
  const float* const weights = weights_of(s);
  alignas(64) std::uint16_t places[32];
  for (std::uint16_t i = 0; i < 32; ++i) {
    places[i] = static_cast<std::uint16_t>(i % 2 != 0 ? 16 + i / 2 : i / 2);
  }
  const __m512i order = _mm512_load_si512(places);
  const bool streaming = s.streaming && aligned(s.out, 64);
  std::size_t h = 0;
  for (; h + 128 <= s.columns; h += 128) {
    __m512 acc[8] = {};
    for (std::uint32_t i = 0; i < s.count; ++i) {
      add_512(acc, static_cast<const std::byte*>(s.rows[i]) + 2 * h, _mm512_set1_ps(weights[i]));
    }
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 4; ++j) {
      store_512(static_cast<std::byte*>(s.out) + 2 * h + 64 * j,
                pack_512<native>(acc[2 * j], acc[2 * j + 1], order), streaming);
    }
  }
  finish(s, h, 2, portable_kernels().sum_bf16);
}

M2N_AVX512 void sum_f16_512(const Sum& s) {
  const float* const weights = weights_of(s);
  std::size_t h = 0;
  for (; h + 64 <= s.columns; h += 64) {
    __m512 acc[4] = {};
    for (std::uint32_t i = 0; i < s.count; ++i) {
      const __m512 weight = _mm512_set1_ps(weights[i]);
      const auto* row = static_cast<const std::byte*>(s.rows[i]) + 2 * h;
#pragma GCC unroll 8
      for (int j = 0; j < 4; ++j) {
        const auto* at = reinterpret_cast<const __m256i*>(row + 32 * j);
        acc[j] = _mm512_fmadd_ps(weight, _mm512_cvtph_ps(_mm256_loadu_si256(at)), acc[j]);
      }
    }
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 4; ++j) {
      auto* at = reinterpret_cast<__m256i*>(static_cast<std::byte*>(s.out) + 2 * h + 32 * j);
      _mm256_storeu_si256(at, _mm512_cvtps_ph(acc[j], _MM_FROUND_TO_NEAREST_INT));
    }
  }
  finish(s, h, 2, portable_kernels().sum_f16);
}

M2N_AVX512 void sum_f32_512(const Sum& s) {
  const float* const weights = weights_of(s);
  const bool streaming = s.streaming && aligned(s.out, 64);
  std::size_t h = 0;
  for (; h + 64 <= s.columns; h += 64) {
    __m512 acc[4] = {};
    for (std::uint32_t i = 0; i < s.count; ++i) {
      const __m512 weight = _mm512_set1_ps(weights[i]);
      const auto* row = static_cast<const float*>(s.rows[i]) + h;
#pragma GCC unroll 8
      for (int j = 0; j < 4; ++j) {
        acc[j] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(row + 16 * j), acc[j]);
      }
    }
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 4; ++j) {
      store_512(static_cast<float*>(s.out) + h + 16 * j, _mm512_castps_si512(acc[j]), streaming);
    }
  }
  finish(s, h, 4, portable_kernels().sum_f32);
}

#define M2N_AVX2 __attribute__((target("avx2,fma,f16c")))

M2N_AVX2 void copy_streaming_256(void* to, const void* from, std::size_t bytes) {
  if (!aligned(to, 32)) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* t = static_cast<std::byte*>(to);
  const auto* f = static_cast<const std::byte*>(from);
  std::size_t b = 0;
  for (; b + 32 <= bytes; b += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(t + b),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f + b)));
  }
  std::memcpy(t + b, f + b, bytes - b);
}

M2N_AVX2 M2N_INLINE __m256i round_256(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, last), _mm256_set1_epi32(0x7fff));
}

M2N_AVX2 void sum_bf16_256(const Sum& s) {
  const float* const weights = weights_of(s);
  const bool streaming = s.streaming && aligned(s.out, 32);
  std::size_t h = 0;
  for (; h + 64 <= s.columns; h += 64) {
    __m256 acc[8] = {};
    for (std::uint32_t i = 0; i < s.count; ++i) {
      const __m256 weight = _mm256_set1_ps(weights[i]);
      const auto* row = static_cast<const std::byte*>(s.rows[i]) + 2 * h;
#pragma GCC unroll 8
      for (int j = 0; j < 4; ++j) {
        __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32 * j));
        asm("" : "+x"(x));
        const __m256i high = _mm256_and_si256(x, _mm256_set1_epi32(~0xffff));
        acc[2 * j] =
            _mm256_fmadd_ps(weight, _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), acc[2 * j]);
        acc[2 * j + 1] = _mm256_fmadd_ps(weight, _mm256_castsi256_ps(high), acc[2 * j + 1]);
      }
    }
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 4; ++j) {
      const __m256i even = _mm256_srli_epi32(round_256(acc[2 * j]), 16);
      const __m256i both = _mm256_blend_epi16(even, round_256(acc[2 * j + 1]), 0xaa);
      auto* at = reinterpret_cast<__m256i*>(static_cast<std::byte*>(s.out) + 2 * h + 32 * j);
      if (streaming) {
        _mm256_stream_si256(at, both);
      } else {
        _mm256_storeu_si256(at, both);
      }
    }
  }
  finish(s, h, 2, portable_kernels().sum_bf16);
}

M2N_AVX2 void sum_f16_256(const Sum& s) {
  const float* const weights = weights_of(s);
  std::size_t h = 0;
  for (; h + 8 <= s.columns; h += 8) {
    __m256 acc = {};
    for (std::uint32_t i = 0; i < s.count; ++i) {
      const auto* at = static_cast<const std::byte*>(s.rows[i]) + 2 * h;
      acc = _mm256_fmadd_ps(_mm256_set1_ps(weights[i]),
                            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))),
                            acc);
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<std::byte*>(s.out) + 2 * h),
                     _mm256_cvtps_ph(acc, _MM_FROUND_TO_NEAREST_INT));
  }
  finish(s, h, 2, portable_kernels().sum_f16);
}

M2N_AVX2 void sum_f32_256(const Sum& s) {
  const float* const weights = weights_of(s);
  std::size_t h = 0;
  for (; h + 8 <= s.columns; h += 8) {
    __m256 acc = {};
    for (std::uint32_t i = 0; i < s.count; ++i) {
      acc = _mm256_fmadd_ps(_mm256_set1_ps(weights[i]),
                            _mm256_loadu_ps(static_cast<const float*>(s.rows[i]) + h), acc);
    }
    _mm256_storeu_ps(static_cast<float*>(s.out) + h, acc);
  }
  finish(s, h, 4, portable_kernels().sum_f32);
}

}  // namespace

const Kernels& kernels() noexcept {
  const Kernels& plain = portable_kernels();
  static const Kernels avx512_bf16{
      "avx512-bf16", copy_512, copy_streaming_512, merge_512<false>, merge_512<true>,
      fence_stores,  fill_512, sum_bf16_512<true>, sum_f16_512,      sum_f32_512};
  static const Kernels avx512{
      "avx512",     copy_512, copy_streaming_512,  merge_512<false>, merge_512<true>,
      fence_stores, fill_512, sum_bf16_512<false>, sum_f16_512,      sum_f32_512};
  static const Kernels avx2{"avx2",       plain.copy, copy_streaming_256, plain.merge, plain.merge,
                            fence_stores, plain.fill, sum_bf16_256,       sum_f16_256, sum_f32_256};
  static const Kernels& best = [&]() -> const Kernels& {
    const bool has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl");
    if (has_512) return __builtin_cpu_supports("avx512bf16") ? avx512_bf16 : avx512;
    const bool has_256 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                         __builtin_cpu_supports("f16c");
    return has_256 ? avx2 : plain;
  }();
  return best;
}

void copy_string(void* to, const void* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

void fence_streaming() {
  _mm_sfence();
}

#else

const Kernels& kernels() noexcept {
  return portable_kernels();
}
void copy_string(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace m2n::perf
