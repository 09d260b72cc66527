// One expert's arithmetic on some rows. Objects belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gemm.hpp"
#include "model.hpp"

namespace moe {

// Rows of bf16 hidden vectors, `stride_bytes` apart.
struct RowsIn {
  const std::byte* base = nullptr;
  std::size_t stride_bytes = 0;
  std::uint32_t count = 0;
};

class Expert {
 public:
  explicit Expert(const Options& options) : options_{options} {}

  // out[i] = bf16 of (silu(x_i gate) * (x_i up)) down, rows adjacent.
  void run(const ExpertWeights& weights, const RowsIn& x, Bf16* out);

 private:
  const Options& options_;
  Matrix x_;
  Matrix gate_;
  Matrix up_;
  Matrix down_;
};

}  // namespace moe
