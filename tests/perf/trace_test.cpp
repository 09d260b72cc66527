// The trace reader believes nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "perf/trace.hpp"

namespace m2n::perf {
namespace {

std::vector<std::byte> demo_bytes() {
  std::ifstream file{M2N_DEMO_TRACE, std::ios::binary};
  const std::vector<char> text{std::istreambuf_iterator<char>{file}, {}};
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void put_u32(std::vector<std::byte>& bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) {
    bytes[at + i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
  }
}

TEST(PerfTrace, ReadsTheDemo) {
  const auto trace = parse_trace(demo_bytes());
  ASSERT_TRUE(trace) << trace.status().text();
  EXPECT_EQ(trace->layers, 2U);
  EXPECT_EQ(trace->tokens, 2048U);
  EXPECT_EQ(trace->top_k, 8U);
  EXPECT_EQ(trace->experts, 128U);
  ASSERT_EQ(trace->kinds.size(), 8U);
  EXPECT_EQ(trace->kinds[0], "python");
  for (std::uint32_t token = 0; token < trace->tokens; ++token) {
    float sum = 0;
    for (std::uint32_t k = 0; k < 8; ++k) sum += trace->weight[trace->entry(1, token) + k];
    EXPECT_NEAR(sum, 1.0F, 0.01F);
  }
}

TEST(PerfTrace, RefusesEveryOtherLength) {
  const auto bytes = demo_bytes();
  for (std::size_t size = 0; size < bytes.size(); size += size < 200 ? 1 : 997) {
    EXPECT_FALSE(parse_trace(std::span{bytes}.first(size))) << size;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_trace(longer));
}

TEST(PerfTrace, RefusesBadFields) {
  // magic, version, layers, tokens, top_k, experts, kinds: each wrong in turn.
  for (std::size_t at = 0; at < 32; at += 4) {
    for (const std::uint32_t value : {0U, 0xffffffffU, 0x80000000U}) {
      auto bytes = demo_bytes();
      put_u32(bytes, at, value);
      const auto trace = parse_trace(bytes);
      ASSERT_FALSE(trace) << at;
      EXPECT_EQ(trace.code(), Code::invalid);
    }
  }
}

TEST(PerfTrace, RefusesBadValues) {
  const auto good = demo_bytes();
  const std::size_t kind = 32 + 8 * 16;
  const std::size_t experts = kind + 2048;
  const std::size_t weights = experts + 2 * 2048 * 8 * 2;
  for (const auto& [at, value] :
       {std::pair{kind, 8}, std::pair{experts, 128}, std::pair{weights + 1, 0x7c},
        std::pair{weights + 1, 0xbc}, std::pair{weights + 1, 0x40}}) {
    auto bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    EXPECT_FALSE(parse_trace(bytes)) << at << " " << value;
  }
}

}  // namespace
}  // namespace m2n::perf
