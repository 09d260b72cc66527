// Tiled products over OpenBLAS. See gemm.hpp for why there are tiles.
#include "gemm.hpp"

#include <cblas.h>

#include <algorithm>
#include <cstring>

#include "numbers.hpp"

namespace moe {
namespace {

void multiply_tile(const float* a, const float* weights, float* c, std::uint32_t tile_rows,
                   const ProductShape& shape) {
  const auto m = static_cast<blasint>(tile_rows);
  const auto n = static_cast<blasint>(shape.columns);
  const auto k = static_cast<blasint>(shape.inner);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0F, a, k, weights, n, 0.0F, c,
              n);
}

float probe_value(std::uint64_t stream, std::uint64_t index) {
  const auto bits = static_cast<std::int16_t>(random_bits(stream, index) & 0xffffu);
  return to_float(to_bf16(static_cast<float>(bits) / 32768.0F));
}

}  // namespace

void Matrix::reshape(std::uint32_t rows, std::uint32_t columns, std::uint32_t tile_rows) {
  rows_ = rows;
  columns_ = columns;
  tile_rows_ = tile_rows;
  values_.assign(std::size_t{tiles()} * tile_rows * columns, 0.0F);
}

void multiply(const Matrix& a, const float* weights, std::uint32_t columns, Matrix& c) {
  c.reshape(a.rows(), columns, a.tile_rows());
  for (std::uint32_t tile = 0; tile < a.tiles(); ++tile) {
    const std::uint32_t first = tile * a.tile_rows();
    multiply_tile(a.row(first), weights, c.row(first), a.tile_rows(), {a.columns(), columns});
  }
}

bool rows_are_independent(std::uint32_t tile_rows, const ProductShape& shape) {
  std::vector<float> weights(std::size_t{shape.inner} * shape.columns);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = probe_value(1, i);
  std::vector<float> probe(shape.inner);
  for (std::size_t i = 0; i < probe.size(); ++i) probe[i] = probe_value(2, i);

  std::vector<float> a(std::size_t{tile_rows} * shape.inner);
  std::vector<float> c(std::size_t{tile_rows} * shape.columns);
  std::vector<float> expected;
  for (std::uint32_t place = 0; place < tile_rows; ++place) {
    // Zeros beside it once, strangers beside it once.
    for (std::uint64_t company = 0; company < 2; ++company) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = company == 0 ? 0.0F : probe_value(3 + place, i);
      }
      std::copy(probe.begin(), probe.end(), a.begin() + std::ptrdiff_t{place} * shape.inner);
      multiply_tile(a.data(), weights.data(), c.data(), tile_rows, shape);
      const float* got = c.data() + std::size_t{place} * shape.columns;
      if (expected.empty()) expected.assign(got, got + shape.columns);
      if (std::memcmp(expected.data(), got, shape.columns * sizeof(float)) != 0) return false;
    }
  }
  return true;
}

std::uint32_t choose_tile_rows(const std::vector<ProductShape>& shapes) {
  for (const std::uint32_t tile_rows : {16u, 8u, 4u, 2u}) {
    const auto holds = [tile_rows](const ProductShape& shape) {
      return rows_are_independent(tile_rows, shape);
    };
    if (std::all_of(shapes.begin(), shapes.end(), holds)) return tile_rows;
  }
  return 1;
}

void use_one_blas_thread() {
  openblas_set_num_threads(1);
}

}  // namespace moe
