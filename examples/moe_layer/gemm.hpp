// Matrix products whose rows do not depend on each other's company. A BLAS may pick another kernel,
// and with it another order of additions, for another number of rows; so every product here has
// the same number of rows (a tile, padded with zeros). Then a token gets the same bits whichever
// tokens share its batch, and the distributed layer can equal the reference exactly.
// Buffers belong to one thread; the functions may run in several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moe {

// [rows, columns] of f32, with room for whole tiles. Padding rows are zero until written.
class Matrix {
 public:
  void reshape(std::uint32_t rows, std::uint32_t columns, std::uint32_t tile_rows);
  std::uint32_t rows() const noexcept { return rows_; }
  std::uint32_t columns() const noexcept { return columns_; }
  std::uint32_t tile_rows() const noexcept { return tile_rows_; }
  std::uint32_t tiles() const noexcept { return (rows_ + tile_rows_ - 1) / tile_rows_; }
  float* row(std::uint32_t i) noexcept { return values_.data() + std::size_t{i} * columns_; }
  const float* row(std::uint32_t i) const noexcept {
    return values_.data() + std::size_t{i} * columns_;
  }

 private:
  std::vector<float> values_;
  std::uint32_t rows_ = 0;
  std::uint32_t columns_ = 0;
  std::uint32_t tile_rows_ = 1;
};

// c = a * weights, weights [a.columns(), columns] row after row.
void multiply(const Matrix& a, const float* weights, std::uint32_t columns, Matrix& c);

struct ProductShape {
  std::uint32_t inner = 0;
  std::uint32_t columns = 0;
};

// True when, for this tile, a row gives the same bits at every place of a tile and beside any
// neighbours.
bool rows_are_independent(std::uint32_t tile_rows, const ProductShape& shape);

// The largest tile of 16, 8, 4, 2 and 1 rows for which that holds for all shapes.
std::uint32_t choose_tile_rows(const std::vector<ProductShape>& shapes);

// One thread per rank is the unit here: no threads inside a product. Once per process.
void use_one_blas_thread();

}  // namespace moe
