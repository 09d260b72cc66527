// The tool's vector kernels give the bits of its plain ones.
#include "perf/kernels.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "perf/routing.hpp"

namespace m2n::perf {
namespace {

void compare_sums(DataType type, std::size_t columns, std::uint32_t count) {
  Random random{columns * 131 + count};
  const std::size_t bytes = columns * size_of(type);
  std::vector<std::vector<std::byte>> rows(count, std::vector<std::byte>(bytes));
  std::vector<const void*> pointers;
  std::vector<float> weights;
  for (auto& row : rows) {
    for (std::size_t h = 0; h < columns; ++h) {
      const std::uint32_t bits = from_float(type, static_cast<float>(random.unit() * 4 - 2));
      std::memcpy(row.data() + h * size_of(type), &bits, size_of(type));
    }
    pointers.push_back(row.data());
    weights.push_back(static_cast<float>(random.unit()));
  }
  std::vector<std::byte> fast(bytes), plain(bytes);
  for (const float* w :
       {static_cast<const float*>(weights.data()), static_cast<const float*>(nullptr)}) {
    kernels().sum(type)({fast.data(), pointers.data(), w, count, columns, false});
    portable_kernels().sum(type)({plain.data(), pointers.data(), w, count, columns, false});
    EXPECT_EQ(fast, plain) << name(type) << " " << columns << " " << count;
  }
}

TEST(PerfKernels, SumsAgreeBitForBit) {
  for (const DataType type : {DataType::bf16, DataType::f16, DataType::f32}) {
    for (const std::size_t columns : {1U, 31U, 128U, 200U, 7168U}) {
      for (const std::uint32_t count : {0U, 1U, 2U, 8U}) compare_sums(type, columns, count);
    }
  }
}

TEST(PerfKernels, HalfRoundTripsAndRoundsToEven) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    EXPECT_EQ(from_float(DataType::f16, to_float(DataType::f16, bits)), bits);
  }
  EXPECT_EQ(from_float(DataType::f16, 1.0F + 0x1p-11F), 0x3c00U);
  EXPECT_EQ(from_float(DataType::f16, 1.0F + 3 * 0x1p-11F), 0x3c02U);
  EXPECT_EQ(from_float(DataType::bf16, 1.0F + 0x1p-8F), 0x3f80U);
  EXPECT_EQ(from_float(DataType::bf16, 1.0F + 3 * 0x1p-8F), 0x3f82U);
}

TEST(PerfKernels, CopiesCopy) {
  std::vector<std::byte> from(3001), to(3001);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 & 0xff);
  for (const auto copy : {kernels().copy, kernels().copy_streaming, &copy_string}) {
    std::fill(to.begin(), to.end(), std::byte{0});
    copy(to.data(), from.data(), from.size());
    kernels().fence();
    EXPECT_EQ(from, to);
  }
}

}  // namespace
}  // namespace m2n::perf
