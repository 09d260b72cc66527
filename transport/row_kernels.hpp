// What the host CPU does with rows: copies and weighted sums. Variants for AVX-512 (with and
// without bf16 instructions), AVX2 and plain C++ give the same bits; the best one this CPU has is
// chosen once. Pure functions, callable from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "m2n/types.hpp"

namespace m2n::transport {

// One output row: acc = +0; acc = fma(weight[i], row[i], acc) for i in order, f32, one rounding
// each; then acc = acc + addend, if any; rounded once to the output type, nearest even, denormals
// kept.
struct SumRow {
  void* out = nullptr;                // [columns] of the output type
  const void* const* rows = nullptr;  // [count] pointers to [columns] of the input type
  const float* weights = nullptr;     // [count]
  std::uint32_t count = 0;
  std::size_t columns = 0;
  const void* addend = nullptr;  // [columns] of the output type, or null
  bool streaming = false;        // write around the cache; the caller fences
};
using SumFunction = void (*)(const SumRow&);

// Copies that do not overlap, any alignment, any size.
using CopyFunction = void (*)(void* to, const void* from, std::size_t bytes);

struct RowKernels {
  std::string_view name;  // "avx512-bf16", "avx512", "avx2", "portable"
  CopyFunction copy = nullptr;
  CopyFunction copy_streaming = nullptr;  // writes around the cache; fence before publishing
  void (*fence_streaming)() = nullptr;
  // From `input` (wire type) to `output`, each bf16, f16 or f32.
  SumFunction (*sum)(DataType input, DataType output) = nullptr;
};

// Tests: the set to use instead. Change it while nobody uses rows.
inline std::atomic<const RowKernels*> test_row_kernels{nullptr};

// The best set for this CPU.
const RowKernels& row_kernels() noexcept;
// Every set this CPU can run, best first, for tests.
std::span<const RowKernels> all_row_kernels() noexcept;

}  // namespace m2n::transport
