// Plain or streaming stores: what a measured row decides.
#include "collectives/store_choice.hpp"

#include <gtest/gtest.h>

namespace m2n::collectives {
namespace {

constexpr std::size_t row = 14336;
constexpr std::uint64_t near_ns = 500;   // 29 GB/s
constexpr std::uint64_t far_ns = 5'500;  // 2.6 GB/s

// Rounds with rows until the choice is `streaming`, if so many are enough.
std::uint32_t rounds_until(StoreChoice& choice, bool streaming, std::uint64_t ns,
                           std::uint32_t most) {
  for (std::uint32_t round = 1; round <= most; ++round) {
    if (choice.sample_due()) choice.sample(row, ns);
    if (choice.streaming() == streaming) return round;
  }
  return most + 1;
}

std::uint32_t samples(StoreChoice& choice, std::uint64_t ns, std::uint32_t rounds) {
  std::uint32_t count = 0;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    if (!choice.sample_due()) continue;
    ++count;
    choice.sample(row, ns);
  }
  return count;
}

TEST(StoreChoice, BeginsWithPlainStoresAndKeepsThemNear) {
  StoreChoice choice;
  EXPECT_FALSE(choice.streaming());
  EXPECT_EQ(samples(choice, near_ns, 4000), 1000u);
  EXPECT_FALSE(choice.streaming());
}

TEST(StoreChoice, FollowsTheCoresApartWithinAFewRounds) {
  StoreChoice choice;
  samples(choice, near_ns, 1001);
  EXPECT_LE(rounds_until(choice, true, far_ns, 100), 5u);
}

TEST(StoreChoice, OneSlowRowIsAnInterruption) {
  StoreChoice choice;
  for (int i = 0; i < 1000; ++i) {
    if (choice.sample_due()) choice.sample(row, far_ns);
    ASSERT_FALSE(choice.streaming());
    while (!choice.sample_due()) continue;
    choice.sample(row, near_ns);
  }
}

TEST(StoreChoice, AsksRarelyWhereAskingIsDearAndGoesBackAtOnce) {
  StoreChoice choice;
  rounds_until(choice, true, far_ns, 100);
  ASSERT_TRUE(choice.streaming());
  EXPECT_LE(samples(choice, far_ns, 2560), 10u);
  EXPECT_TRUE(choice.streaming());
  EXPECT_LE(rounds_until(choice, false, near_ns, 1000), 256u);
}

TEST(StoreChoice, AClockThatStandsStillIsNotSlow) {
  StoreChoice choice;
  samples(choice, 0, 100);
  EXPECT_FALSE(choice.streaming());
}

}  // namespace
}  // namespace m2n::collectives
