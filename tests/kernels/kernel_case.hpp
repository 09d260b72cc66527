// One weighted sum as a test case: values of any bits, the exact expected row, and memory that
// shows every access outside [0, columns).
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "transport/row_kernels.hpp"

namespace m2n::test {

inline constexpr DataType float_types[] = {DataType::bf16, DataType::f16, DataType::f32};

using Random = std::mt19937_64;

// Bits of an element: ordinary, small, huge, special and arbitrary ones.
std::uint32_t random_bits(Random& random, DataType type);

std::uint32_t element(DataType type, const std::byte* base, std::size_t index);
void set_element(DataType type, std::byte* base, std::size_t index, std::uint32_t bits);

// Memory of an exact size with unreadable pages around it. It ends (or begins) at one.
class GuardedMemory {
 public:
  enum class Side { begin, end };
  GuardedMemory(std::size_t bytes, Side side);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
};

struct SumCase {
  DataType input = DataType::bf16;
  DataType output = DataType::bf16;
  std::size_t columns = 0;
  std::vector<std::vector<std::uint32_t>> rows;  // [count][columns] bits
  std::vector<float> weights;                    // [count]
  std::vector<std::uint32_t> addend;             // [columns] bits, or empty
  std::vector<std::uint32_t> expected() const;
};
SumCase random_case(Random& random, DataType input, DataType output, std::size_t columns,
                    std::uint32_t count);

// Runs the case with out, rows and addend at these byte offsets from a 64-byte boundary, between
// guard bytes. Empty, or what is wrong.
struct Offsets {
  std::size_t out = 0;
  std::size_t rows = 0;
  std::size_t addend = 0;
};
std::string run_sum(const transport::RowKernels& set, const SumCase& sum, const Offsets& offsets,
                    bool streaming, std::span<const std::uint32_t> expected);
// The same with unreadable pages at one side of every array.
std::string run_guarded_sum(const transport::RowKernels& set, const SumCase& sum,
                            GuardedMemory::Side side, bool streaming,
                            std::span<const std::uint32_t> expected);

}  // namespace m2n::test
