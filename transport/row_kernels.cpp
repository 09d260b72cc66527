// Chooses among the kernel variants, once. See row_kernels.hpp.
#include "transport/row_kernels.hpp"

#include <array>

#include "transport/row_kernels_variants.hpp"
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

namespace m2n::transport {
namespace {

struct Table {
  std::array<RowKernels, 4> sets;
  std::size_t count = 0;

  void add(const RowKernels& set) noexcept { sets[count++] = set; }
};

void no_fence() {}

#if defined(__x86_64__)
void store_fence() {
  _mm_sfence();
}

// Clang's __builtin_cpu_supports does not know f16c.
bool has_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// __builtin_cpu_supports also asks whether the operating system saves the registers.
void add_x86(Table& table) noexcept {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) {
    table.add({"avx512-bf16", copy_avx512, copy_streaming_avx512, store_fence, sum_avx512_bf16});
  }
  if (avx512) {
    table.add({"avx512", copy_avx512, copy_streaming_avx512, store_fence, sum_avx512});
  }
  if (avx2) table.add({"avx2", copy_avx2, copy_streaming_avx2, store_fence, sum_avx2});
}
#endif

const Table& table() noexcept {
  static const Table chosen = [] {
    Table result;
#if defined(__x86_64__)
    add_x86(result);
#endif
    result.add({"portable", copy_portable, copy_portable, no_fence, sum_portable});
    return result;
  }();
  return chosen;
}

}  // namespace

const RowKernels& row_kernels() noexcept {
  const RowKernels* chosen = test_row_kernels.load(std::memory_order_relaxed);
  return chosen != nullptr ? *chosen : table().sets[0];
}

std::span<const RowKernels> all_row_kernels() noexcept {
  return {table().sets.data(), table().count};
}

}  // namespace m2n::transport
