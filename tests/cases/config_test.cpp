// I-28: one rank differs in exactly one field; every rank is told which, by whom, and both values.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/cases/scenario.hpp"

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Difference {
  const char* field;
  const char* mine;  // as told of the rank that differs
  const char* others;
  std::function<void(ChannelConfig&)> change;
};

void expect_refused(const Status& status, const Difference& difference, Clock::time_point start,
                    const char* rank = "rank 3") {
  EXPECT_EQ(status.code(), Code::invalid) << status.text();
  for (const char* part : {difference.field, difference.mine, difference.others, rank}) {
    EXPECT_NE(status.text().find(part), std::string::npos)
        << "no " << part << ": " << status.text();
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds{5});
}

TEST(I28, OneFieldOfAChannelDiffers) {
  const std::vector<Difference> all = {
      {"name", "other", "main", [](ChannelConfig& c) { c.name = "other"; }},
      {"phase", "1", "0", [](ChannelConfig& c) { c.phase = Phase::prefill; }},
      {"experts", "10", "8", [](ChannelConfig& c) { c.experts = 10; }},
      {"top_k", "3", "2", [](ChannelConfig& c) { c.top_k = 3; }},
      {"hidden", "65", "64", [](ChannelConfig& c) { c.hidden = 65; }},
      {"max_tokens", "256", "128", [](ChannelConfig& c) { c.max_tokens = 256; }},
      {"depth", "3", "2", [](ChannelConfig& c) { c.depth = 3; }},
      {"payload", "f16", "bf16", [](ChannelConfig& c) { c.payload = DataType::f16; }},
      {"extra_row_bytes", "12", "none", [](ChannelConfig& c) { c.extra_row_bytes = {12}; }},
      {"wire", "f32", "bf16", [](ChannelConfig& c) { c.wire = DataType::f32; }},
      {"output", "f32", "bf16", [](ChannelConfig& c) { c.output = DataType::f32; }},
      {"combine", "per_expert", "reduced",
       [](ChannelConfig& c) { c.combine = Combine::per_expert; }},
      {"weights", "caller", "library", [](ChannelConfig& c) { c.weights = Weights::caller; }},
      {"presence", "touched", "every", [](ChannelConfig& c) { c.presence = Presence::touched; }},
      {"exchange", "1", "0", [](ChannelConfig& c) { c.exchange = ExchangeKind::push; }},
      {"replica_choice", "local_first", "balanced",
       [](ChannelConfig& c) { c.replica_choice = ReplicaChoice::local_first; }},
      {"placement", "", "", [](ChannelConfig& c) {
         std::vector<ExpertParts> experts;
         for (std::uint32_t e = 0; e < 8; ++e) experts.push_back({{{{e % 2, e / 2}}}});
         c.placement = *Placement::make(2, experts);
       }}};
  for (const char* transport : {"inproc", "shm"}) {
    RankSet set;
    set.attention = set.experts = 2;
    set.transport = transport;
    run_ranks(set, [&](Rank& rank) {
      for (const Difference& difference : all) {
        rank.at(difference.field);
        ChannelConfig config = usual_channel(8, 2, 64, 128);
        if (rank.config.world_rank == 3) difference.change(config);
        const Clock::time_point start = Clock::now();
        expect_refused(rank.group.open(config).status(), difference, start);
      }
      // Nothing of this has hurt the group.
      rank.at("the good one");
      Result<Channel> good = rank.group.open(usual_channel(8, 2, 64, 128));
      ASSERT_TRUE(bool(good)) << good.status().text();
      EXPECT_TRUE(bool(good->drain()));
    });
    if (HasFailure()) return;
  }
}

// Fields that are local may differ.
TEST(I28, LocalFieldsMayDiffer) {
  RankSet set;
  set.attention = set.experts = 2;
  run_ranks(set, [&](Rank& rank) {
    ChannelConfig config = usual_channel(8, 2, 64, 128);
    if (rank.config.world_rank == 3) {
      config.layout = Layout::packed;
      config.packed_alignment = 16;
    }
    if (rank.config.world_rank == 1) config.shard_count = 2;
    Result<Channel> channel = rank.group.open(config);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    EXPECT_TRUE(bool(channel->drain()));
  });
}

TEST(I28, OneRankCannotOpen) {
  RankSet set;
  set.attention = set.experts = 2;
  run_ranks(set, [&](Rank& rank) {
    ChannelConfig config = usual_channel(8, 2, 64, 128);
    if (rank.config.world_rank == 3) config.hidden = 0;
    const Clock::time_point start = Clock::now();
    expect_refused(rank.group.open(config).status(), {"hidden", "0", "1..", {}}, start);
  });
}

// Another name: tests/bootstrap/meeting_test.cpp.
TEST(I28, GroupsThatDisagree) {
  struct GroupDifference {
    const char* field;
    const char* mine;
    const char* others;
    std::function<void(GroupConfig&)> change;
  };
  const std::vector<GroupDifference> all = {
      {"attention_ranks", "3", "2", [](GroupConfig& c) { c.attention_ranks = 3; }},
      {"expert_ranks", "3", "2", [](GroupConfig& c) { c.expert_ranks = 3; }},
      {"world_size", "5", "4", [](GroupConfig& c) { c.world_size = 5; }},
      {"transport", "shm", "inproc", [](GroupConfig& c) { c.transport = "shm"; }}};
  for (const GroupDifference& difference : all) {
    RankSet set;
    set.attention = set.experts = 2;
    set.bare = true;
    set.adjust = [&](GroupConfig& config) {
      if (config.world_rank == 3) difference.change(config);
    };
    run_ranks(set, [&](Rank& rank) {
      const Clock::time_point start = Clock::now();
      expect_refused(Group::create(rank.config, rank.store).status(),
                     {difference.field, difference.mine, difference.others, {}}, start);
    });
  }
}

TEST(I28, RolesThatClash) {
  RankSet set;
  set.attention = set.experts = 2;
  set.bare = true;
  set.adjust = [](GroupConfig& config) {
    if (config.world_rank == 1) config.attention_rank = 0;
  };
  run_ranks(set, [&](Rank& rank) {
    const Status status = Group::create(rank.config, rank.store).status();
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_NE(status.text().find("attention_rank"), std::string::npos) << status.text();
  });
}

// Counters of 32 bits: what they cannot count is refused before anything is allocated.
TEST(I28, MoreEntriesThanACounterHolds) {
  ChannelConfig config = usual_channel(128, 128, 8, 1u << 24);
  EXPECT_NE(channel_sizes(config, 1, 2).code(), Code::invalid) << "2^31 entries";
  std::vector<ExpertParts> experts(128);
  for (std::uint32_t e = 0; e < 128; ++e) experts[e].parts = {{{0, e}}, {{1, e}}};
  config.placement = *Placement::make(2, experts);
  const Status status = channel_sizes(config, 1, 2).status();
  EXPECT_EQ(status.code(), Code::invalid);
  for (const char* part : {"max_tokens", "16777216", "128", "1..8388608", "placement"}) {
    EXPECT_NE(status.text().find(part), std::string::npos) << part << ": " << status.text();
  }
}

TEST(I28, MoreGroupedRowsThanACounterHolds) {
  RankSet set;
  run_ranks(set, [&](Rank& rank) {
    for (const Layout layout : {Layout::grouped, Layout::packed}) {
      ChannelConfig config = usual_channel(8192, 2, 8, 16);
      config.layout = layout;
      config.capacity = 1u << 20;  // x 8192 local experts
      config.packed_alignment = 1u << 20;
      const Clock::time_point start = Clock::now();
      expect_refused(rank.group.open(config).status(),
                     {"rows of a grouped batch", "8192 local experts", "4294967295", {}}, start,
                     "ChannelConfig::capacity");
      EXPECT_EQ(channel_sizes(config, 1, 1).code(), Code::invalid) << "told before anything is up";
    }
  });
}

// A rank that never comes is named, at the start deadline.
TEST(I28, AMissingRankIsNamed) {
  RankSet set;
  set.attention = 2;
  set.bare = true;
  set.adjust = [](GroupConfig& config) { config.start_timeout = std::chrono::milliseconds{300}; };
  run_ranks(set, [&](Rank& rank) {
    if (rank.config.world_rank == 1) return;
    const Clock::time_point start = Clock::now();
    const Status status = Group::create(rank.config, rank.store).status();
    EXPECT_EQ(status.code(), Code::timeout) << status.text();
    EXPECT_NE(status.text().find("rank 1"), std::string::npos) << status.text();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds{2});
  });
}

}  // namespace
}  // namespace m2n::testing
