// Ranks that are processes with a file store hear of what is wrong with one of them, all at once.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/ranks.hpp"

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;

void expect_all_hear(const std::function<void(GroupConfig&)>& adjust,
                     const std::vector<std::string>& parts) {
  RankSet set;
  set.attention = set.experts = 2;
  set.bare = set.processes = true;
  set.transport = "shm";
  set.adjust = adjust;
  run_ranks(set, [&](Rank& rank) {
    const Clock::time_point start = Clock::now();
    const Status status = Group::create(rank.config, rank.store).status();
    EXPECT_EQ(status.code(), Code::invalid) << status.text();
    for (const std::string& part : parts) {
      EXPECT_NE(status.text().find(part), std::string::npos)
          << "no " << part << ": " << status.text();
    }
    EXPECT_LT(Clock::now() - start, std::chrono::seconds{5});
  });
}

TEST(Processes, ARankThatIsThereTwice) {
  expect_all_hear(
      [](GroupConfig& config) {
        if (config.world_rank == 2) config.world_rank = 1;
      },
      {"rank 1 is there twice", "process "});
}

TEST(Processes, AnotherWorldSize) {
  expect_all_hear(
      [](GroupConfig& config) {
        if (config.world_rank == 3) config.world_size = 5;
      },
      {"world_size", "rank 3", "4", "5"});
}

TEST(Processes, ARankThatCannot) {
  expect_all_hear(
      [](GroupConfig& config) {
        if (config.world_rank == 2) config.workers = 0;
      },
      {"create: workers = 0", "(rank 2;"});
}

}  // namespace
}  // namespace m2n::testing
