// Rows "Channel::abort" and "Channel::close" of docs/threads.md.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/hooks.hpp"
#include "tests/threads/lanes.hpp"

namespace m2n::testing {
namespace {

using collectives::Hook;
using collectives::HookEvent;
using collectives::HookPoint;

// Counts ranks that are about to sleep, while it lives.
class SleepWatch {
 public:
  SleepWatch() { collectives::test_hook.store(&hook_); }
  ~SleepWatch() { collectives::test_hook.store(nullptr); }
  void await_sleepers(int count) const {
    while (sleeping_.load() < count) std::this_thread::yield();
  }

 private:
  static void call(void* context, const HookEvent& event) {
    if (event.point == HookPoint::sleep) ++static_cast<SleepWatch*>(context)->sleeping_;
  }
  Hook hook_{call, this};
  std::atomic<int> sleeping_{0};
};

constexpr auto one_second = std::chrono::seconds{1};

TEST(Abort, EndsCallsThatSleepOnAllEnds) {
  std::vector<Group> groups =
      make_groups(1, 2, [](GroupConfig& config) { config.wait = Wait::sleep; });
  ASSERT_EQ(groups.size(), 1u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(1), {0, 1, {}});
  ASSERT_EQ(channels.size(), 1u);
  Result<Ticket> ticket = send(channels[0], 1);
  ASSERT_TRUE(ticket);
  ASSERT_TRUE(channels[0].receive());  // dropped: answered `unserved`
  Result<Ticket> second = send(channels[0], 1);
  ASSERT_TRUE(second);
  Batch held = *channels[0].receive();  // never answered, so that combine has to wait
  SleepWatch watch;
  std::atomic<Code> combined{Code::ok};
  std::atomic<Code> received{Code::ok};
  std::thread attention{[&] {
    std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
    combined = channels[0].combine(*second, {out.data()}, {}, Timeout::never()).code();
  }};
  std::thread expert{[&] { received = channels[0].receive(Timeout::never()).code(); }};
  watch.await_sleepers(2);
  const auto start = std::chrono::steady_clock::now();
  std::thread{[&] { channels[0].abort(); }}.join();
  attention.join();
  expert.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, one_second);
  EXPECT_EQ(combined.load(), Code::aborted);
  EXPECT_EQ(received.load(), Code::aborted);
  EXPECT_EQ(send(channels[0], 1).code(), Code::aborted);
  EXPECT_EQ(channels[0].drain().code(), Code::aborted);
}

TEST(Abort, OfOneChannelLeavesTheOthersAlone) {
  std::vector<Group> groups = make_groups(1, 1);
  ASSERT_EQ(groups.size(), 1u);
  const OpenOptions options{0, 0, double_batch};
  std::vector<Channel> first = open_everywhere(groups, lane_config(1, "first"), options);
  std::vector<Channel> second = open_everywhere(groups, lane_config(1, "second"), options);
  ASSERT_EQ(first.size() + second.size(), 2u);
  first[0].abort();
  first[0].abort();
  Result<Ticket> ticket = send(second[0], 1);
  ASSERT_TRUE(ticket);
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
  EXPECT_TRUE(second[0].serve(*ticket, {out.data()}));
}

// The group's close must end although the aborted channel's handle is alive.
TEST(Abort, ThenTheGroupCloses) {
  std::vector<Group> groups = make_groups(2, 2);
  ASSERT_EQ(groups.size(), 2u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(2), {0, 1, {}});
  ASSERT_EQ(channels.size(), 2u);
  std::atomic<Code> received{Code::ok};
  std::thread expert{[&] { received = channels[1].receive(Timeout::never()).code(); }};
  channels[0].abort();
  EXPECT_TRUE(groups[0].close());
  expert.join();
  EXPECT_EQ(received.load(), Code::closed);
}

TEST(Close, TellsPeersThatWait) {
  std::vector<Group> groups = make_groups(2, 2);
  ASSERT_EQ(groups.size(), 2u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(2), {0, 1, {}});
  ASSERT_EQ(channels.size(), 2u);
  std::atomic<Code> received{Code::ok};
  std::thread expert{[&] { received = channels[1].receive(Timeout::never()).code(); }};
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(channels[0].close());
  EXPECT_LT(std::chrono::steady_clock::now() - start, one_second);
  expert.join();
  EXPECT_EQ(received.load(), Code::closed);
  EXPECT_EQ(send(channels[0], 1).code(), Code::closed);
}

TEST(Close, CutsOffWhatIsInFlight) {
  std::vector<Group> groups = make_groups(1, 1);
  ASSERT_EQ(groups.size(), 1u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(1), {});
  ASSERT_EQ(channels.size(), 1u);
  Result<Ticket> ticket = send(channels[0], 1);
  Result<Batch> batch = channels[0].receive();
  ASSERT_TRUE(ticket);
  ASSERT_TRUE(batch);
  EXPECT_TRUE(groups[0].close());
  EXPECT_TRUE(channels[0].close());
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
  EXPECT_EQ(channels[0].combine(*ticket, {out.data()}).code(), Code::cancelled);
  EXPECT_EQ(double_batch(channels[0], *batch).code(), Code::cancelled);
  EXPECT_EQ(channels[0].receive().code(), Code::closed);  // a new call
}

}  // namespace
}  // namespace m2n::testing
