// Row kernels in plain C++, for CPUs without a variant of their own and as the tests' second
// opinion. Streams nothing: its streaming stores are plain ones. Where the target has no fused
// multiply-add, std::fma is a library call: right, but slow.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "transport/floats.hpp"
#include "transport/row_kernels_variants.hpp"

namespace m2n::transport {
namespace {

template <DataType type>
float load(const std::byte* from) {
  if constexpr (type == DataType::f32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return type == DataType::bf16 ? f32_from_bf16(bits) : f32_from_f16(bits);
  }
}

template <DataType type>
void store(std::byte* to, float value) {
  if constexpr (type == DataType::f32) {
    std::memcpy(to, &value, sizeof value);
  } else {
    const std::uint16_t bits = type == DataType::bf16 ? bf16_from_f32(value) : f16_from_f32(value);
    std::memcpy(to, &bits, sizeof bits);
  }
}

template <DataType input, DataType output>
void sum(const SumRow& row) {
  constexpr std::size_t in_bytes = size_of(input);
  constexpr std::size_t out_bytes = size_of(output);
  constexpr std::size_t chunk = 128;  // accumulators that stay in the nearest cache
  std::array<float, chunk> acc;
  auto* out = static_cast<std::byte*>(row.out);
  const auto* addend = static_cast<const std::byte*>(row.addend);
  for (std::size_t first = 0; first < row.columns; first += chunk) {
    const std::size_t n = std::min(chunk, row.columns - first);
    acc.fill(0.0f);
    for (std::uint32_t i = 0; i < row.count; ++i) {
      const auto* from = static_cast<const std::byte*>(row.rows[i]) + first * in_bytes;
      const float weight = row.weights[i];
      for (std::size_t j = 0; j < n; ++j) {
        acc[j] = std::fma(weight, load<input>(from + j * in_bytes), acc[j]);
      }
    }
    for (std::size_t j = 0; j < n; ++j) {
      const std::size_t at = (first + j) * out_bytes;
      if (addend != nullptr) acc[j] += load<output>(addend + at);
      store<output>(out + at, acc[j]);
    }
  }
}

template <DataType input>
SumFunction sum_to(DataType output) {
  switch (output) {
    case DataType::bf16:
      return sum<input, DataType::bf16>;
    case DataType::f16:
      return sum<input, DataType::f16>;
    case DataType::f32:
      return sum<input, DataType::f32>;
    default:
      return nullptr;
  }
}

}  // namespace

void copy_portable(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

SumFunction sum_portable(DataType input, DataType output) {
  switch (input) {
    case DataType::bf16:
      return sum_to<DataType::bf16>(output);
    case DataType::f16:
      return sum_to<DataType::f16>(output);
    case DataType::f32:
      return sum_to<DataType::f32>(output);
    default:
      return nullptr;
  }
}

}  // namespace m2n::transport
