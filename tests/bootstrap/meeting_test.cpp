// Ranks find each other through a store although some are late, twice, of another mind or of
// another release, and find each other again when they try again. Ranks are threads, or processes
// where the test says so.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "collectives/bootstrap.hpp"
#include "tests/bootstrap/meeting.hpp"
#include "tests/support/ranks.hpp"

namespace m2n::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int most_tries = 100;

Result<Group> create_again_and_again(const GroupConfig& config,
                                     const std::shared_ptr<Store>& store) {
  Result<Group> group = Code::again;
  for (int i = 0; i < most_tries && !group; ++i) group = Group::create(config, store);
  return group;
}

Result<Channel> open_again_and_again(Group& group, const ChannelConfig& config) {
  Result<Channel> channel = Code::again;
  for (int i = 0; i < most_tries && !channel; ++i) channel = group.open(config);
  return channel;
}

// Dispatch and combine nothing: the ranks are those of one group.
void expect_usable(Group& group) {
  Result<Channel> channel = group.open(small_channel("use"));
  ASSERT_TRUE(bool(channel)) << channel.status().text();
  EXPECT_TRUE(bool(channel->drain()));
}

TEST(Retry, RanksThatGaveUpMeetWhoCameLate) {
  std::latch gave_up{2};
  run_ranks(bare(2, 1), [&](Rank& rank) {
    GroupConfig config = rank.config;
    if (config.world_rank == 1) {
      gave_up.wait();
    } else {
      config.start_timeout = 50ms;
      expect_says(Group::create(config, rank.store).status(), Code::timeout, {"rank 1", "gave up"});
      config.start_timeout = rank.config.start_timeout;
      gave_up.arrive_and_wait();
    }
    Result<Group> group = Group::create(config, rank.store);
    ASSERT_TRUE(bool(group)) << group.status().text();
    expect_usable(*group);
  });
}

TEST(Retry, AnOpenThatOneRankMissedIsDoneAgain) {
  std::latch gave_up{1};
  RankSet set = bare(1, 1);
  set.adjust = [](GroupConfig& config) {
    if (config.world_rank == 0) config.start_timeout = 100ms;
  };
  run_ranks(set, [&](Rank& rank) {
    Result<Group> group = create_again_and_again(rank.config, rank.store);
    ASSERT_TRUE(bool(group)) << group.status().text();
    if (rank.config.world_rank == 0) {
      expect_says(group->open(small_channel()).status(), Code::timeout, {"rank 1", "\"main\""});
      gave_up.count_down();
    }
    gave_up.wait();
    for (const char* name : {"main", "second"}) {
      Result<Channel> channel = open_again_and_again(*group, small_channel(name));
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      EXPECT_TRUE(bool(channel->drain()));
    }
  });
}

// All ranks time out at about the same time, again and again, until all are there.
TEST(Retry, ImpatientRanksMeetInTheEnd) {
  RankSet set = bare(2, 2);
  std::atomic<int> others_gave_up{0};
  run_ranks(set, [&](Rank& rank) {
    GroupConfig config = rank.config;
    config.start_timeout = 200ms;
    if (config.world_rank == 2) {
      others_gave_up.wait(0);
    } else {
      config.start_timeout = 20ms;
      EXPECT_EQ(Group::create(config, rank.store).code(), Code::timeout);
      ++others_gave_up;
      others_gave_up.notify_all();
      config.start_timeout = 200ms;
    }
    Result<Group> group = create_again_and_again(config, rank.store);
    ASSERT_TRUE(bool(group)) << group.status().text();
  });
}

// A rank that died between two calls of the store leaves an entry that nobody reads.
TEST(Retry, AfterAnEntryThatWasNeverWritten) {
  run_ranks(bare(1, 1), [&](Rank& rank) {
    GroupConfig config = rank.config;
    if (config.world_rank == 0) {
      ASSERT_TRUE(bool(rank.store->add("m2n/3:m2n/0/log", 1)));
      ASSERT_TRUE(bool(rank.store->set("go", {})));
    }
    ASSERT_TRUE(bool(rank.store->wait("go", 20s)));
    config.start_timeout = 20ms;
    EXPECT_EQ(Group::create(config, rank.store).code(), Code::timeout);
    Result<Group> group = Group::create(rank.config, rank.store);
    EXPECT_TRUE(bool(group)) << group.status().text();
  });
}

// What was refused is told to every rank, however late it comes, and then all may try again.
TEST(Refusal, LateRanksHearIt) {
  std::latch refused{2};
  run_ranks(bare(2, 2), [&](Rank& rank) {
    GroupConfig config = rank.config;
    const bool early = config.world_rank == 0 || config.world_rank == 3;
    if (config.world_rank == 3) config.expert_ranks = 3;
    if (!early) refused.wait();
    const Clock::time_point start = Clock::now();
    expect_says(Group::create(config, rank.store).status(), Code::invalid,
                {"expert_ranks", "rank 0", "rank 3", "2", "3"});
    EXPECT_LT(Clock::now() - start, 5s);
    if (early) refused.count_down();
    Result<Group> group = Group::create(rank.config, rank.store);
    EXPECT_TRUE(bool(group)) << group.status().text();
  });
}

TEST(Refusal, ARankOutsideTheWorldIsTold) {
  RankSet set = bare(2, 2);
  set.adjust = [](GroupConfig& config) {
    if (config.world_rank == 3) config.world_rank = 7;
  };
  run_ranks(set, [&](Rank& rank) {
    expect_says(Group::create(rank.config, rank.store).status(), Code::invalid,
                {"world_rank = 7", "0..3"});
  });
}

// Also where rank 0, which serves the store, drops it as soon as it has failed.
TEST(Refusal, AllHearItFromAStoreThatGoesAway) {
  for (int i = 0; i < 10; ++i) {
    TcpStoreConfig server;
    server.job_key = "k";
    server.server = true;
    Result<std::shared_ptr<Store>> store = make_tcp_store(server);
    ASSERT_TRUE(bool(store)) << store.status().text();
    const std::uint16_t port = tcp_store_port(**store);
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 1; rank < 4; ++rank) {
      ranks.emplace_back([port, rank] {
        TcpStoreConfig client;
        client.job_key = "k";
        client.port = port;
        Result<std::shared_ptr<Store>> mine = make_tcp_store(client);
        ASSERT_TRUE(bool(mine)) << mine.status().text();
        GroupConfig config = GroupConfig::split(2, 2, rank);
        if (rank == 3) config.expert_ranks = 3;
        expect_says(Group::create(config, *mine).status(), Code::invalid, {"expert_ranks"});
      });
    }
    expect_says(Group::create(GroupConfig::split(2, 2, 0), std::move(*store)).status(),
                Code::invalid, {"expert_ranks"});
    store = Code::closed;
    for (std::thread& rank : ranks) rank.join();
  }
}

// A rank that expects fewer may be up before the other comes; who comes then is told.
TEST(Refusal, AGroupThatCameUpWithoutThisRankIsNamed) {
  const std::shared_ptr<Store> store = make_inproc_store();
  const Result<Group> alone = Group::create(GroupConfig::both(1, 0), store);
  ASSERT_TRUE(bool(alone)) << alone.status().text();
  GroupConfig config = GroupConfig::split(1, 1, 1);
  config.start_timeout = 10ms;
  expect_says(Group::create(config, store).status(), Code::timeout,
              {"rank 0 has not come", "world_size = 1"});
}

// Whoever is there twice, all hear it at once. One rank is missing for it.
TEST(Duplicate, RankIsNamedOnAllRanks) {
  RankSet set = bare(2, 2);
  set.adjust = [](GroupConfig& config) {
    if (config.world_rank == 2) config.world_rank = 1;
  };
  run_ranks(set, [&](Rank& rank) {
    const Clock::time_point start = Clock::now();
    const Status status = Group::create(rank.config, rank.store).status();
    expect_says(status, Code::invalid, {"rank 1 is there twice", "process", "world_rank"});
    EXPECT_EQ(status.peer(), 1);
    EXPECT_LT(Clock::now() - start, 5s);
  });
}

TEST(Names, AnotherNameIsToldWhenTimeIsOver) {
  RankSet set = bare(2, 2);
  set.adjust = [](GroupConfig& config) {
    if (config.world_rank == 3) config.name = "other";
    config.start_timeout = 150ms;
  };
  run_ranks(set, [&](Rank& rank) {
    // Tried again where a rank came so late that the others had given up.
    Status status;
    for (int i = 0; i < most_tries; ++i) {
      status = Group::create(rank.config, rank.store).status();
      if (status.text().find("GroupConfig::name") != std::string::npos) break;
    }
    expect_says(status, Code::timeout, {"GroupConfig::name", "m2n", "other"});
  });
}

TEST(Names, TwoGroupsComeUpInOneStoreAtTheSameTime) {
  RankSet set = bare(2, 2);
  set.adjust = [](GroupConfig& config) {
    const bool upper = config.world_rank >= 2;
    config = GroupConfig::split(1, 1, config.world_rank % 2);
    config.transport = "inproc";
    config.start_timeout = 20s;
    config.name = upper ? "a/0" : "a";
  };
  run_ranks(set, [&](Rank& rank) {
    for (int i = 0; i < 3; ++i) {
      Result<Group> group = Group::create(rank.config, rank.store);
      ASSERT_TRUE(bool(group)) << group.status().text();
      expect_usable(*group);
    }
  });
}

// Ranks claim ranges of wire versions by this table.
struct Versions {
  static inline collectives::VersionRange of_rank[2];
  static collectives::VersionRange look(std::uint32_t rank) { return of_rank[rank]; }
  Versions(collectives::VersionRange first, collectives::VersionRange second) {
    of_rank[0] = first;
    of_rank[1] = second;
    collectives::test_versions = look;
  }
  ~Versions() { collectives::test_versions = nullptr; }
};

TEST(WireVersion, TheGreatestCommonOneIsUsed) {
  const Versions versions{{1, 3}, {2, 4}};
  setenv("M2N_LOG", "info", 1);
  run_ranks(bare(1, 1), [&](Rank& rank) {
    std::string log;
    GroupConfig config = rank.config;
    config.log = [&log](LogLevel, std::int32_t, std::string_view text) { log += text; };
    Result<Group> group = Group::create(config, rank.store);
    ASSERT_TRUE(bool(group)) << group.status().text();
    EXPECT_NE(log.find("wire version 3"), std::string::npos) << log;
    expect_usable(*group);
  });
  unsetenv("M2N_LOG");
}

TEST(WireVersion, NoneInCommonIsRefusedOnBoth) {
  const Versions versions{{1, 1}, {2, 3}};
  run_ranks(bare(1, 1), [&](Rank& rank) {
    expect_says(Group::create(rank.config, rank.store).status(), Code::invalid,
                {"rank 0 speaks wire version 1", "rank 1 speaks wire versions 2 to 3"});
  });
}

TEST(Transport, AnUnknownOneIsNamedByCreate) {
  RankSet set = bare(1, 1);
  set.transport = "carrier-pigeon";
  run_ranks(set, [&](Rank& rank) {
    const Status status = Group::create(rank.config, rank.store).status();
    expect_says(
        status, Code::invalid,
        {"create: transport = carrier-pigeon", "auto, inproc, shm", "GroupConfig::transport"});
    EXPECT_EQ(status.text().find("open_transport"), std::string::npos);
  });
}

}  // namespace
}  // namespace m2n::testing
