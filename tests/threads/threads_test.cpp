// docs/threads.md, row by row: what may run at the same time does, and the thread sanitizer
// watches.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/threads/lanes.hpp"

namespace m2n::testing {
namespace {

constexpr std::uint32_t steps = 200;

// Runs a function per index, each on its own thread.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& run) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
}

// Rows "dispatch, combine, ..." and "receive, reply": the two ends of one channel on two workers.
TEST(Threads, EndsOfTwoWorkersRunAtTheSameTime) {
  std::vector<Group> groups = make_groups(2, 2);
  ASSERT_EQ(groups.size(), 2u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(2), {0, 1, {}});
  ASSERT_EQ(channels.size(), 2u);
  std::atomic<std::uint32_t> right{0};
  in_parallel(4, [&](std::size_t i) {
    Channel& channel = channels[i / 2];
    for (std::uint32_t step = 0; step < steps; ++step) {
      if (i % 2 == 1) {
        EXPECT_TRUE(answer(channel));
        continue;
      }
      Result<Ticket> ticket = send(channel, static_cast<float>(step));
      ASSERT_TRUE(ticket);
      if (take_back(channel, *ticket, static_cast<float>(step))) ++right;
    }
  });
  EXPECT_EQ(right, 2 * steps);
}

// Row "ends of different workers": two channels, a worker and a thread each.
TEST(Threads, ChannelsOfTwoWorkersRunAtTheSameTime) {
  std::vector<Group> groups = make_groups(2, 2);
  ASSERT_EQ(groups.size(), 2u);
  OpenOptions first{0, 0, double_batch};
  OpenOptions second{1, 1, double_batch};
  std::vector<std::vector<Channel>> lanes;
  lanes.push_back(open_everywhere(groups, lane_config(2, "first"), first));
  lanes.push_back(open_everywhere(groups, lane_config(2, "second"), second));
  ASSERT_EQ(lanes[0].size() + lanes[1].size(), 4u);
  std::atomic<std::uint32_t> right{0};
  in_parallel(4, [&](std::size_t i) {
    Channel& channel = lanes[i % 2][i / 2];
    for (std::uint32_t step = 0; step < steps; ++step) {
      Result<Ticket> ticket = send(channel, static_cast<float>(i));
      ASSERT_TRUE(ticket);
      std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
      ASSERT_TRUE(channel.serve(*ticket, {out.data()}));
      if (out.front() == 2 * static_cast<float>(i) && out.back() == out.front()) ++right;
    }
    EXPECT_TRUE(groups[i / 2].progress(static_cast<std::uint32_t>(i % 2)));
    EXPECT_TRUE(channel.progress());
    EXPECT_TRUE(channel.drain());
  });
  EXPECT_EQ(right, 4 * steps);
}

// "which thread may change, with the caller's own synchronisation", tickets and batches included.
TEST(Threads, AnEndMayMoveFromThreadToThread) {
  std::vector<Group> groups = make_groups(1, 2);
  ASSERT_EQ(groups.size(), 1u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(1), {0, 1, {}});
  ASSERT_EQ(channels.size(), 1u);
  Channel& channel = channels[0];
  for (std::uint32_t step = 0; step < 20; ++step) {
    Ticket ticket;
    std::thread{[&] { ticket = *send(channel, 3); }}.join();
    Batch batch;
    std::thread{[&] { batch = *channel.receive(); }}.join();
    std::thread{[&] { EXPECT_TRUE(double_batch(channel, batch)); }}.join();
    std::thread{[&] { EXPECT_TRUE(take_back(channel, ticket, 3)); }}.join();
  }
}

// Rows "dropping a Ticket" and "dropping a Batch", each on its end's thread, both at once.
TEST(Threads, TicketsAndBatchesAreDroppedOnTheirOwnThreads) {
  std::vector<Group> groups = make_groups(2, 2);
  ASSERT_EQ(groups.size(), 2u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(2), {0, 1, {}});
  ASSERT_EQ(channels.size(), 2u);
  in_parallel(4, [&](std::size_t i) {
    Channel& channel = channels[i / 2];
    for (std::uint32_t step = 0; step < steps; ++step) {
      if (i % 2 == 1) {
        EXPECT_TRUE(channel.receive());
        continue;
      }
      Result<Ticket> ticket = send(channel, 1);
      while (ticket.code() == Code::exhausted) {
        std::this_thread::yield();
        ticket = send(channel, 1);
      }
      EXPECT_TRUE(ticket);
    }
  });
  for (const Channel& channel : channels) {
    EXPECT_EQ(channel.attention_statistics().abandoned, steps);
    EXPECT_EQ(channel.expert_statistics().abandoned, steps);
  }
}

// Rows "config, row_format" and "Store methods".
TEST(Threads, ConstantsAndStoresMayBeReadAnywhere) {
  std::vector<Group> groups = make_groups(1, 1);
  ASSERT_EQ(groups.size(), 1u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(1), {0, 0, double_batch});
  ASSERT_EQ(channels.size(), 1u);
  const std::shared_ptr<Store> store = make_inproc_store();
  in_parallel(4, [&](std::size_t i) {
    for (std::uint32_t step = 0; step < steps; ++step) {
      EXPECT_EQ(channels[0].config().hidden, lane_hidden);
      EXPECT_EQ(channels[0].row_format().stride_bytes, 128u);
      EXPECT_TRUE(store->add("sum", 1));
      if (i != 0) continue;
      Result<Ticket> ticket = send(channels[0], 1);
      std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
      EXPECT_TRUE(channels[0].serve(*ticket, {out.data()}));
    }
  });
  EXPECT_EQ(*store->add("sum", 0), 4 * steps);
}

// Row "attention_statistics, expert_statistics": each on its end's thread.
TEST(Threads, StatisticsAreReadOnTheirEndsThreads) {
  std::vector<Group> groups = make_groups(1, 2);
  ASSERT_EQ(groups.size(), 1u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(1), {0, 1, {}});
  ASSERT_EQ(channels.size(), 1u);
  in_parallel(2, [&](std::size_t i) {
    for (std::uint32_t step = 0; step < steps; ++step) {
      if (i == 1) {
        EXPECT_TRUE(answer(channels[0]));
        EXPECT_EQ(channels[0].expert_statistics().rows, (step + 1) * lane_tokens);
        continue;
      }
      Result<Ticket> ticket = send(channels[0], 1);
      EXPECT_TRUE(take_back(channels[0], *ticket, 1));
      EXPECT_EQ(channels[0].attention_statistics().rows, (step + 1) * lane_tokens);
    }
  });
}

// Rows "receive_any" and "agree_pieces": channels take turns, and a worker hears for all its ends.
TEST(Threads, ABusyChannelDoesNotStarveAnother) {
  std::vector<Group> groups = make_groups(1, 2);
  ASSERT_EQ(groups.size(), 1u);
  std::vector<Channel> busy = open_everywhere(groups, lane_config(1, "busy"), {0, 1, {}});
  std::vector<Channel> rare = open_everywhere(groups, lane_config(1, "rare"), {0, 1, {}});
  ASSERT_EQ(busy.size() + rare.size(), 2u);
  std::array<Channel, 2> both{busy[0], rare[0]};
  std::vector<Ticket> tickets;
  for (int i = 0; i < 2; ++i) {
    tickets.push_back(*send(both[0], 1));
    tickets.push_back(*send(both[1], 2));
  }
  std::size_t last = 1;
  for (int i = 0; i < 4; ++i) {
    Result<AnyBatch> any = receive_any(both);
    ASSERT_TRUE(any);
    EXPECT_NE(any->index, last);
    last = any->index;
    EXPECT_TRUE(double_batch(both[last], any->batch));
  }
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    EXPECT_TRUE(take_back(both[i % 2], tickets[i], static_cast<float>(1 + i % 2)));
  }
  std::thread expert{[&] { EXPECT_TRUE(answer(both[0])); }};  // waits on one channel only
  EXPECT_EQ(*both[1].agree_pieces(9), 3u);
  Result<Ticket> ticket = send(both[0], 1);
  EXPECT_TRUE(take_back(both[0], *ticket, 1));
  expert.join();
}

// Row "log callback": on the thread that is inside the call, with that rank; silent by default.
TEST(Threads, LogLinesComeOnTheCallersThread) {
  struct Line {
    std::thread::id thread;
    std::int32_t rank = -1;
    std::string text;
  };
  std::mutex mutex;
  std::vector<Line> lines;
  const auto listen = [&](GroupConfig& config) {
    config.log = [&](LogLevel, std::int32_t rank, std::string_view text) {
      const std::lock_guard lock{mutex};
      lines.push_back({std::this_thread::get_id(), rank, std::string{text}});
    };
  };
  EXPECT_EQ(make_groups(2, 1, listen).size(), 2u);
  EXPECT_TRUE(lines.empty());
  setenv("M2N_LOG", "info", 1);  // no other thread runs
  EXPECT_EQ(make_groups(2, 1, listen).size(), 2u);
  unsetenv("M2N_LOG");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].rank, lines[1].rank);
  EXPECT_NE(lines[0].thread, lines[1].thread);
  EXPECT_NE(lines[0].text.find("is up over inproc"), std::string::npos);
}

}  // namespace
}  // namespace m2n::testing
