// Conversions between f32 and 16-bit floats, against exact arithmetic, and that arithmetic itself
// against the C library.
#include "transport/floats.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "exact.hpp"
#include "kernel_case.hpp"

namespace m2n::test {
namespace {

using namespace m2n::transport;

static_assert(bf16_from_f32(1.0f) == 0x3f80);
static_assert(f16_from_f32(1.0f) == 0x3c00);
static_assert(f32_from_f16(0x0001) == 0x1p-24f);
static_assert(f32_from_bf16(0x0001) == 0x1p-133f);
static_assert(f16_from_f32(65519.0f) == 0x7bff && f16_from_f32(65520.0f) == 0x7c00);

std::uint32_t narrowed(DataType type, std::uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  return type == DataType::bf16 ? bf16_from_f32(value) : f16_from_f32(value);
}

std::uint32_t widened(DataType type, std::uint32_t bits) {
  const auto half = static_cast<std::uint16_t>(bits);
  return std::bit_cast<std::uint32_t>(type == DataType::bf16 ? f32_from_bf16(half)
                                                             : f32_from_f16(half));
}

class Floats16 : public testing::TestWithParam<DataType> {};

TEST_P(Floats16, WidenEveryPatternExactlyAndBack) {
  const DataType type = GetParam();
  for (std::uint32_t bits = 0; bits < 0x1'0000u; ++bits) {
    const std::uint32_t wide = widened(type, bits);
    ASSERT_TRUE(same(DataType::f32, wide, round_to(DataType::f32, decode(type, bits))))
        << std::hex << bits << " became " << wide;
    ASSERT_TRUE(same(type, narrowed(type, wide), bits)) << std::hex << bits;
  }
}

// Halfway points between neighbours, and their own neighbours in f32.
TEST_P(Floats16, RoundToNearestEvenAtEveryTie) {
  const DataType type = GetParam();
  for (std::uint32_t bits = 0; bits < 0xffffu; ++bits) {
    if (decode(type, bits).kind != Number::Kind::finite) continue;
    const double low = std::bit_cast<float>(widened(type, bits));
    double high = std::bit_cast<float>(widened(type, bits + 1));
    if (!std::isfinite(high)) {  // past the largest: the tie at which infinity begins
      high = low + (low - std::bit_cast<float>(widened(type, bits - 1)));
    }
    const auto tie = std::bit_cast<std::uint32_t>(static_cast<float>((low + high) / 2));
    for (const std::uint32_t near : {tie - 1, tie, tie + 1}) {
      const std::uint32_t expected = round_to(type, decode(DataType::f32, near));
      ASSERT_TRUE(same(type, narrowed(type, near), expected))
          << std::hex << near << " became " << narrowed(type, near) << ", not " << expected;
    }
  }
}

TEST_P(Floats16, RoundAnyBits) {
  const DataType type = GetParam();
  Random random{7};
  for (int i = 0; i < 200'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const std::uint32_t expected = round_to(type, decode(DataType::f32, bits));
    ASSERT_TRUE(same(type, narrowed(type, bits), expected)) << std::hex << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Floats16, testing::Values(DataType::bf16, DataType::f16),
                         [](const auto& types) { return name(types.param); });

TEST(Exact, AgreesWithTheLibrarysFusedMultiplyAdd) {
  Random random{11};
  for (int i = 0; i < 200'000; ++i) {
    std::uint32_t operands[3];
    for (auto& operand : operands) operand = random_bits(random, DataType::f32);
    if (i % 4 == 0) {  // nearly cancelling
      const float product = std::bit_cast<float>(operands[0]) * std::bit_cast<float>(operands[1]);
      operands[2] = std::bit_cast<std::uint32_t>(-product);
    }
    const float theirs =
        std::fma(std::bit_cast<float>(operands[0]), std::bit_cast<float>(operands[1]),
                 std::bit_cast<float>(operands[2]));
    ASSERT_TRUE(same(DataType::f32, exact_fma(operands[0], operands[1], operands[2]),
                     std::bit_cast<std::uint32_t>(theirs)))
        << std::hex << operands[0] << ' ' << operands[1] << ' ' << operands[2];
  }
}

}  // namespace
}  // namespace m2n::test
