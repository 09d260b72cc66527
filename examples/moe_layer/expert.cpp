// SwiGLU in f32 on bf16 numbers, with y rounded to the wire type.
#include "expert.hpp"

#include <cmath>
#include <cstring>

namespace moe {

void Expert::run(const ExpertWeights& weights, const RowsIn& x, Bf16* out) {
  const std::uint32_t hidden = options_.hidden;
  const std::uint32_t inner = options_.intermediate;
  x_.reshape(x.count, hidden, options_.tile_rows);
  for (std::uint32_t i = 0; i < x.count; ++i) {
    const std::byte* source = x.base + i * x.stride_bytes;
    float* row = x_.row(i);
    for (std::uint32_t h = 0; h < hidden; ++h) {
      Bf16 value = 0;
      std::memcpy(&value, source + h * sizeof(Bf16), sizeof(Bf16));
      row[h] = to_float(value);
    }
  }
  multiply(x_, weights.gate.data(), inner, gate_);
  multiply(x_, weights.up.data(), inner, up_);
  const std::size_t inner_values = std::size_t{x.count} * inner;
  float* gated = gate_.row(0);
  const float* up = up_.row(0);
  for (std::size_t i = 0; i < inner_values; ++i) {
    gated[i] = gated[i] / (1.0F + std::exp(-gated[i])) * up[i];
  }
  multiply(gate_, weights.down.data(), hidden, down_);
  const float* y = down_.row(0);
  const std::size_t values = std::size_t{x.count} * hidden;
  for (std::size_t i = 0; i < values; ++i) out[i] = to_bf16(y[i]);
}

}  // namespace moe
