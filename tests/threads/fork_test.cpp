// A child that is forked after init: every verb of its copies of the handles is refused, nothing of
// it reaches the peers or the parent, and it can make a group of its own. One thread, both roles.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/threads/lanes.hpp"

namespace m2n::testing {
namespace {

struct Handles {
  Group group;
  Channel channel;
  Ticket ticket;
  Batch batch;
};

Handles open_handles(const char* transport) {
  GroupConfig config = GroupConfig::both(1, 0);
  config.transport = transport;
  Handles handles;
  Result<Group> group = Group::create(config, make_inproc_store());
  if (!group) return handles;
  handles.group = *group;
  ChannelConfig lane = lane_config(1);
  lane.exchange = ExchangeKind::shared;
  Result<Channel> channel = handles.group.open(lane, {0, 0, double_batch});
  if (channel) handles.channel = *channel;
  return handles;
}

// In a child; what `run` returns is its exit code.
int in_child(const std::function<int()>& run) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::_Exit(run());
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The number of the first verb that was not refused as it should be, from 1; 0 if all were.
int use_everything(Handles& handles) {
  Channel& channel = handles.channel;
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
  const MutableRows rows{out.data()};
  const Outputs outputs{out.data()};
  const std::array<Outputs, 1> per_source{outputs};
  std::array<Channel, 1> channels{channel};
  const std::vector<Status> statuses{
      send(channel, 7).status(),
      channel.combine(handles.ticket, rows),
      channel.try_combine(handles.ticket, rows),
      channel.issued(handles.ticket).status(),
      channel.input_free(handles.ticket).status(),
      channel.cancel(handles.ticket),
      channel.arena_acquire(1).status(),
      channel.arena_release({}),
      channel.agree_pieces(1).status(),
      channel.receive().status(),
      channel.try_receive().status(),
      receive_any(channels).status(),
      channel.reply(handles.batch, per_source),
      channel.reply(handles.batch, outputs),
      channel.reply_rows(handles.batch, 0, 1, outputs),
      channel.await_rows(handles.batch, 0, 1),
      channel.serve(handles.ticket, rows),
      channel.progress(),
      channel.drain(),
      channel.close(),
      handles.group.open(lane_config(1, "another")).status(),
      handles.group.progress(),
      handles.group.close(),
  };
  channel.abort();
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    const bool refused = statuses[i].code() == Code::invalid &&
                         statuses[i].text().find("forked child") != std::string::npos;
    if (!refused) return static_cast<int>(i) + 1;
  }
  return 0;
}

TEST(Fork, EveryVerbIsRefusedInTheChildAndTheParentGoesOn) {
  for (const char* transport : {"inproc", "shm"}) {
    SCOPED_TRACE(transport);
    Handles handles = open_handles(transport);
    ASSERT_TRUE(bool(handles.channel));
    Channel& channel = handles.channel;
    for (int round = 0; round < 3; ++round) {
      Result<Ticket> ticket = send(channel, 3);
      ASSERT_TRUE(ticket);
      handles.ticket = std::move(*ticket);
      Result<Batch> batch = channel.receive();
      ASSERT_TRUE(batch);
      handles.batch = std::move(*batch);
      EXPECT_EQ(in_child([&] {
                  const int wrong = use_everything(handles);
                  handles = Handles{};  // drops, closes and ends are local
                  return wrong;
                }),
                0)
          << "the number of a verb of use_everything";
      EXPECT_TRUE(double_batch(channel, handles.batch));
      EXPECT_TRUE(take_back(channel, handles.ticket, 3));
    }
    EXPECT_TRUE(channel.drain());
    EXPECT_TRUE(channel.close());
  }
}

TEST(Fork, AChildMakesAGroupOfItsOwn) {
  Handles parent = open_handles("shm");
  ASSERT_TRUE(bool(parent.channel));
  EXPECT_EQ(in_child([&] {
              Handles own = open_handles("shm");
              if (!own.channel) return 1;
              Result<Ticket> ticket = send(own.channel, 2);
              if (!ticket || !answer(own.channel)) return 2;
              if (!take_back(own.channel, *ticket, 2)) return 3;
              if (send(parent.channel, 2).code() != Code::invalid) return 4;
              // A grandchild is no owner of either.
              return in_child([&] { return send(own.channel, 2).code() == Code::invalid ? 0 : 1; });
            }),
            0);
  Result<Ticket> ticket = send(parent.channel, 2);
  ASSERT_TRUE(ticket);
  EXPECT_TRUE(answer(parent.channel));
  EXPECT_TRUE(take_back(parent.channel, *ticket, 2));
}

}  // namespace
}  // namespace m2n::testing
