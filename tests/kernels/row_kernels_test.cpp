// Every kernel set that this CPU has gives the exact bits, at every size and alignment, and touches
// nothing outside its arrays.
#include "transport/row_kernels.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "exact.hpp"
#include "kernel_case.hpp"

namespace m2n::test {
namespace {

using transport::all_row_kernels;
using transport::row_kernels;
using transport::RowKernels;

std::size_t up_to(Random& random, std::size_t largest) {
  return random() % (largest + 1);
}

void expect_everywhere(Random& random, const SumCase& sum) {
  const auto expected = sum.expected();
  const Offsets offsets{up_to(random, 63), up_to(random, 63), up_to(random, 63)};
  const Offsets aligned{offsets.out / 4 * 4, offsets.rows / 2 * 2, offsets.addend / 2 * 2};
  for (const RowKernels& set : all_row_kernels()) {
    for (const bool streaming : {false, true}) {
      ASSERT_EQ(run_sum(set, sum, {}, streaming, expected), "");
      ASSERT_EQ(run_sum(set, sum, offsets, streaming, expected), "");
      ASSERT_EQ(run_sum(set, sum, aligned, streaming, expected), "");
    }
  }
}

TEST(RowKernels, BestFirstAndPortableLast) {
  const auto sets = all_row_kernels();
  ASSERT_FALSE(sets.empty());
  EXPECT_EQ(&row_kernels(), &sets.front());
  EXPECT_EQ(sets.back().name, "portable");
  for (const RowKernels& set : sets) {
    EXPECT_EQ(set.sum(DataType::fp8_e4m3, DataType::bf16), nullptr) << set.name;
    EXPECT_EQ(set.sum(DataType::f32, DataType::i8), nullptr) << set.name;
  }
}

class Sums : public testing::TestWithParam<std::tuple<DataType, DataType>> {
 protected:
  DataType input() const { return std::get<0>(GetParam()); }
  DataType output() const { return std::get<1>(GetParam()); }
};

TEST_P(Sums, EverySize) {
  Random random{1};
  for (std::size_t columns = 1; columns <= 130; ++columns) {
    const auto count = static_cast<std::uint32_t>(columns % 10);
    SCOPED_TRACE(columns);
    expect_everywhere(random, random_case(random, input(), output(), columns, count));
    if (HasFatalFailure()) return;
  }
}

TEST_P(Sums, EveryCount) {
  Random random{2};
  for (std::uint32_t count = 0; count < 10; ++count) {
    for (const std::size_t columns : {std::size_t{0}, std::size_t{333}}) {
      expect_everywhere(random, random_case(random, input(), output(), columns, count));
      if (HasFatalFailure()) return;
    }
  }
}

// The wide loop's rows are the width of a real model, with a ragged end.
TEST_P(Sums, WideRows) {
  Random random{3};
  for (const std::size_t columns : {std::size_t{7168}, std::size_t{7171}}) {
    expect_everywhere(random, random_case(random, input(), output(), columns, 2));
    if (HasFatalFailure()) return;
  }
}

TEST_P(Sums, OneRowOfWeightOneIsTheRowPlusZero) {
  Random random{4};
  for (std::size_t columns = 1; columns <= 300; columns += 1 + columns / 16) {
    SumCase sum = random_case(random, input(), output(), columns, 1);
    sum.weights[0] = 1.0f;
    sum.addend.clear();
    sum.rows[0][columns / 2] = 1u << (format_of(input()).bits() - 1);  // -0
    ASSERT_EQ(sum.expected()[columns / 2], 0u);
    expect_everywhere(random, sum);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Sums, StayInsideTheirArrays) {
  Random random{5};
  for (std::size_t columns = 1; columns <= 130; columns += 1 + columns / 24) {
    const auto sum = random_case(random, input(), output(), columns,
                                 static_cast<std::uint32_t>(1 + columns % 3));
    const auto expected = sum.expected();
    for (const RowKernels& set : all_row_kernels()) {
      for (const bool streaming : {false, true}) {
        ASSERT_EQ(run_guarded_sum(set, sum, GuardedMemory::Side::begin, streaming, expected), "");
        ASSERT_EQ(run_guarded_sum(set, sum, GuardedMemory::Side::end, streaming, expected), "");
      }
    }
  }
}

// One row: every 16-bit pattern, or for f32 everything around the ties of the output type.
TEST_P(Sums, ConvertEveryPattern) {
  SumCase sum{input(), output(), 0, {{}}, {1.0f}, {}};
  auto& row = sum.rows[0];
  if (input() != DataType::f32) {
    for (std::uint32_t bits = 0; bits < 0x1'0000u; ++bits) row.push_back(bits);
  } else {
    for (std::uint32_t high = 0; high < 0x1'0000u; high += 3) {
      for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x1000u}) {
        row.push_back(high << 16 | low);
      }
    }
  }
  sum.columns = row.size();
  const auto expected = sum.expected();
  for (const RowKernels& set : all_row_kernels()) {
    ASSERT_EQ(run_sum(set, sum, {}, false, expected), "");
    sum.weights[0] = -1.0f;  // the general path
    ASSERT_EQ(run_sum(set, sum, {}, true, sum.expected()), "");
    sum.weights[0] = 1.0f;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, Sums, testing::Combine(testing::ValuesIn(float_types), testing::ValuesIn(float_types)),
    [](const auto& types) {
      return std::string{name(std::get<0>(types.param))} + "_to_" + name(std::get<1>(types.param));
    });

// A native conversion that flushes denormals must not be seen: one denormal in an otherwise normal
// vector, at each lane.
TEST(RowKernels, KeepADenormalInEachLane) {
  for (std::size_t lane = 0; lane < 64; ++lane) {
    SumCase sum{DataType::bf16, DataType::bf16, 64, {{}}, {0.5f}, {}};
    sum.rows[0].assign(64, 0x3f80);
    sum.rows[0][lane] = 0x0081;  // half of it is a denormal that rounds to even
    const auto expected = sum.expected();
    ASSERT_EQ(expected[lane], 0x0040u);
    for (const RowKernels& set : all_row_kernels()) {
      ASSERT_EQ(run_sum(set, sum, {}, false, expected), "") << lane;
    }
  }
}

// Rounded as a number, this NaN would become a zero.
TEST_P(Sums, KeepANanWithAllBitsSet) {
  for (const std::uint32_t nan : {0x7fff'ffffu, 0xffff'ffffu}) {
    SumCase sum{input(), output(), 70, {{}}, {std::bit_cast<float>(nan)}, {}};
    sum.rows[0].assign(70, round_to(input(), decode(DataType::bf16, 0x3f80)));
    const auto expected = sum.expected();
    ASSERT_TRUE(is_nan(output(), expected[0]));
    for (const RowKernels& set : all_row_kernels()) {
      ASSERT_EQ(run_sum(set, sum, {}, false, expected), "");
    }
  }
}

TEST(RowKernels, AddInOrder) {
  const std::uint32_t big = std::bit_cast<std::uint32_t>(0x1p30f);
  const std::uint32_t one = std::bit_cast<std::uint32_t>(1.0f);
  for (const RowKernels& set : all_row_kernels()) {
    const SumCase kept{DataType::f32, DataType::f32, 1, {{big}, {big}, {one}}, {1, -1, 1}, {}};
    const std::uint32_t is_one[] = {one};
    EXPECT_EQ(run_sum(set, kept, {}, false, is_one), "");
    const SumCase lost{DataType::f32, DataType::f32, 1, {{big}, {one}, {big}}, {1, 1, -1}, {}};
    const std::uint32_t is_zero[] = {0};
    EXPECT_EQ(run_sum(set, lost, {}, false, is_zero), "");
  }
}

void expect_copy(const RowKernels& set, bool streaming, std::size_t bytes, const Offsets& offsets) {
  constexpr std::size_t margin = 128;
  std::vector<std::byte> from(bytes + 2 * margin + 64);
  std::vector<std::byte> to(bytes + 2 * margin + 64, std::byte{0xa5});
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 + i / 256);
  const std::size_t first = margin + offsets.out;
  (streaming ? set.copy_streaming : set.copy)(to.data() + first,
                                              from.data() + margin + offsets.rows, bytes);
  set.fence_streaming();
  for (std::size_t i = 0; i < to.size(); ++i) {
    const bool inside = i >= first && i < first + bytes;
    const std::byte expected = inside ? from[i - offsets.out + offsets.rows] : std::byte{0xa5};
    ASSERT_EQ(to[i], expected) << set.name << ' ' << bytes << " bytes, byte " << i << " from "
                               << offsets.rows << " to " << offsets.out;
  }
}

TEST(Copies, EverySizeAndAlignment) {
  Random random{6};
  for (const RowKernels& set : all_row_kernels()) {
    for (std::size_t bytes = 0; bytes < 700; bytes += 1 + bytes / 300 * 5) {
      for (const bool streaming : {false, true}) {
        expect_copy(set, streaming, bytes, {});
        expect_copy(set, streaming, bytes, {up_to(random, 63), up_to(random, 63), 0});
        if (HasFatalFailure()) return;
      }
    }
    expect_copy(set, true, 100'003, {5, 11, 0});
  }
}

TEST(Copies, StayInsideTheirArrays) {
  for (std::size_t bytes = 0; bytes < 400; bytes += 1 + bytes / 64) {
    for (const auto side : {GuardedMemory::Side::begin, GuardedMemory::Side::end}) {
      const GuardedMemory from{bytes, side};
      const GuardedMemory to{bytes, side};
      if (bytes != 0) std::memset(from.data(), 0x5a, bytes);
      for (const RowKernels& set : all_row_kernels()) {
        set.copy(to.data(), from.data(), bytes);
        set.copy_streaming(to.data(), from.data(), bytes);
        set.fence_streaming();
        ASSERT_EQ(std::memcmp(to.data(), from.data(), bytes), 0) << set.name;
      }
    }
  }
}

TEST(Copies, NothingFromNowhere) {
  for (const RowKernels& set : all_row_kernels()) {
    set.copy(nullptr, nullptr, 0);
    set.copy_streaming(nullptr, nullptr, 0);
  }
}

}  // namespace
}  // namespace m2n::test
