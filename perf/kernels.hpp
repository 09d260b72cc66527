// Copies and sums of the tool itself: for the roof, for producing x, and for the MPI baseline,
// which gets arithmetic as fast as the library's. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "m2n/types.hpp"

namespace m2n::perf {

struct Sum {
  void* out = nullptr;
  const void* const* rows = nullptr;
  const float* weights = nullptr;  // null = plain sum
  std::uint32_t count = 0;         // 0 = zeros
  std::size_t columns = 0;
  bool streaming = false;  // write around the cache; the caller fences
};

struct Kernels {
  const char* name;
  void (*copy)(void* to, const void* from, std::size_t bytes);
  void (*copy_streaming)(void* to, const void* from, std::size_t bytes);
  // to = a ^ b ^ ... of `count` rows: what any combine must at least read and write.
  void (*merge)(void* to, const void* const* rows, std::uint32_t count, std::size_t bytes);
  void (*merge_streaming)(void* to, const void* const* rows, std::uint32_t count,
                          std::size_t bytes);
  void (*fence)();  // after streaming copies and sums, before anybody else reads
  // Repeats `pattern` (256 bytes) over a row.
  void (*fill)(void* to, const void* pattern, std::size_t bytes);
  // acc = +0; acc = fma(w, row, acc) in order, f32; rounded once to nearest even.
  void (*sum_bf16)(const Sum&);
  void (*sum_f16)(const Sum&);
  void (*sum_f32)(const Sum&);

  auto sum(DataType type) const noexcept {
    return type == DataType::f16 ? sum_f16 : type == DataType::f32 ? sum_f32 : sum_bf16;
  }
};

const Kernels& kernels() noexcept;           // the best for this CPU
const Kernels& portable_kernels() noexcept;  // for comparison in tests

void copy_string(void* to, const void* from, std::size_t bytes);  // rep movsb, or memcpy

// Scalar arithmetic, by its own code: what the data check expects.
float to_float(DataType type, std::uint32_t bits) noexcept;
std::uint32_t from_float(DataType type, float value) noexcept;

}  // namespace m2n::perf
