// The contract of event descriptors: readable once per arming, nothing lost on the way to sleep,
// nothing written to what took the place of a pipe that has gone.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/transport/rig.hpp"
#include "transport/event_set.hpp"

namespace m2n::testing {
namespace {

using namespace m2n::transport;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::nanoseconds no_recheck{0};

bool readable(int descriptor, int limit_ms = 0) {
  pollfd entry{descriptor, POLLIN, 0};
  return poll(&entry, 1, limit_ms) == 1 && (entry.revents & POLLIN) != 0;
}

std::size_t descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"})
    ++count;
  return count;
}

class Events : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, Events, ::testing::ValuesIn(all_kinds()), name_of);

// Until what the decorators held back is out as well.
void put_now(Endpoint& from, std::size_t to) {
  ASSERT_TRUE(from.put(to, {}, 0, 0));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(from.pump());
}

TEST_P(Events, ReadableOncePerArming) {
  auto ranks = make_endpoints(GetParam(), 2);
  Transport& owner = *ranks[1].transport;
  const Result<int> made = owner.event_descriptor();
  ASSERT_TRUE(made) << made.status().text();
  EXPECT_EQ(*owner.event_descriptor(), *made) << "the same at every call";
  put_now(ranks[0], 1);
  EXPECT_FALSE(readable(*made)) << "nobody has armed it";
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(owner.arm_events(no_recheck));
    EXPECT_FALSE(readable(*made)) << "what came before was there to be seen";
    put_now(ranks[0], 1);
    EXPECT_TRUE(readable(*made));
    put_now(ranks[0], 1);
    EXPECT_TRUE(readable(*made)) << "until it is armed again";
  }
  ASSERT_TRUE(owner.arm_events(no_recheck));
  EXPECT_FALSE(readable(*made)) << "puts that came while it was readable are no further event";
  ranks[0].transport->notify(ranks[0].peers[1]);
  EXPECT_TRUE(readable(*made));
  ASSERT_TRUE(owner.arm_events(1ms));
  EXPECT_TRUE(readable(*made, 10'000));
  epoll_event event{};
  ASSERT_EQ(epoll_wait(*made, &event, 1, 0), 1);
  EXPECT_EQ(event.data.u64, static_cast<std::uint64_t>(EventSet::Source::recheck));
  ASSERT_TRUE(owner.arm_events(no_recheck));
  EXPECT_FALSE(readable(*made));
}

TEST_P(Events, ArmingNeedsADescriptor) {
  auto transport = make_transport(GetParam(), {"contract", 3, 0});
  const Status status = transport->arm_events(no_recheck);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.text().find("event_descriptor"), std::string::npos) << status.text();
}

// Both sides sleep in poll alone, without a re-check: one lost wake-up shows.
TEST_P(Events, NothingIsLostOnTheWayToSleep) {
  auto ranks = make_endpoints(GetParam(), 2);
  const bool holds = GetParam().decorator == "faulty" || GetParam().decorator == "reorder";
  const std::uint64_t rounds = holds ? 200 : 1500;
  const auto end = Clock::now() + 55s;
  const auto sleep_for = [&](Endpoint& self, int descriptor, std::uint64_t round) {
    const auto ready = [&] { return load_acquire(self.word(0)) >= round; };
    while (Clock::now() < end) {
      EXPECT_TRUE(self.transport->arm_events(no_recheck));
      if (ready()) return true;
      EXPECT_TRUE(self.pump());
      // A put that is held back needs its sender awake.
      const bool woken = readable(descriptor, holds ? 1 : 50'000);
      EXPECT_TRUE(woken || holds) << "round " << round;
    }
    return false;
  };
  std::thread other{[&] {
    const Result<int> made = ranks[1].transport->event_descriptor();
    for (std::uint64_t round = 1; round <= rounds && sleep_for(ranks[1], *made, round); ++round) {
      EXPECT_TRUE(ranks[1].put(0, {}, 0, 0));
    }
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(ranks[1].pump());
  }};
  const Result<int> made = ranks[0].transport->event_descriptor();
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    EXPECT_TRUE(ranks[0].put(1, {}, 0, 0));
    if (!sleep_for(ranks[0], *made, round)) break;
  }
  EXPECT_EQ(load_acquire(ranks[0].word(0)), rounds);
  ranks[1].transport->doorbell().ring_sleepers();  // frees the other side if this one gave up
  other.join();
}

// A waiting call of one end and an armed event loop on the same worker: each is told.
TEST_P(Events, ASleeperAndAnEventLoop) {
  auto ranks = make_endpoints(GetParam(), 2);
  Doorbell& bell = ranks[1].transport->doorbell();
  const Result<int> made = ranks[1].transport->event_descriptor();
  ASSERT_TRUE(made);
  ASSERT_TRUE(ranks[1].transport->arm_events(no_recheck));
  std::atomic<bool> done{false};
  std::thread sleeper{[&] {
    while (!done) bell.sleep([&] { return done.load(); }, 50s);
  }};
  while ((bell.sleepers.load() & ~Doorbell::armed) == 0) std::this_thread::yield();
  done = true;
  bell.ring();
  sleeper.join();
  EXPECT_TRUE(readable(*made));
  EXPECT_EQ(bell.sleepers.load(), 0u) << "nobody is counted any more";
}

TEST_P(Events, NoDescriptorStays) {
  auto ranks = make_endpoints(GetParam(), 2);
  const std::size_t before = descriptors();
  for (int i = 0; i < 200; ++i) {
    auto owner = make_transport(GetParam(), {"contract", 7, 0});
    const auto peer = ranks[0].transport->connect(owner->address());
    ASSERT_TRUE(peer);
    ASSERT_TRUE(owner->event_descriptor());
    ASSERT_TRUE(owner->arm_events(20ms));
    ranks[0].transport->notify(*peer);
    ASSERT_TRUE(owner->arm_events(20ms));
    owner.reset();
    ranks[0].transport->notify(*peer);  // armed by one that has gone
    ranks[0].transport->disconnect(*peer);
  }
  EXPECT_EQ(descriptors(), before);
}

// Neither side has a descriptor left: a clear refusal here, the re-check there.
TEST_P(Events, OutOfDescriptors) {
  auto ranks = make_endpoints(GetParam(), 2);
  Transport& owner = *ranks[1].transport;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  const std::size_t open_now = descriptors();
  for (std::size_t room = 0; room < 5; ++room) {
    none.rlim_cur = room;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const Result<int> made = owner.event_descriptor();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(made.code(), Code::system);
    EXPECT_NE(made.status().text().find("ulimit"), std::string::npos) << made.status().text();
  }
  EXPECT_EQ(descriptors(), open_now);
  const Result<int> made = owner.event_descriptor();
  ASSERT_TRUE(made);
  ASSERT_TRUE(owner.arm_events(5ms));
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ranks[0].transport->notify(ranks[0].peers[1]);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(readable(*made, 10'000));
}

class NoEvents final : public Decorator {
 public:
  using Decorator::Decorator;
  Result<int> event_descriptor() override { return Transport::event_descriptor(); }
  Status arm_events(std::chrono::nanoseconds recheck) override {
    return Transport::arm_events(recheck);
  }
};

TEST(EventsOf, ATransportWithoutThemSaysSo) {
  NoEvents transport{make_transport({"inproc", ""}, {"contract", 0, 0})};
  EXPECT_EQ(transport.event_descriptor().code(), Code::unavailable);
  EXPECT_EQ(transport.arm_events(1ms).code(), Code::unavailable);
  EXPECT_NE(transport.arm_events(1ms).text().find("inproc"), std::string::npos);
}

// The number of a closed pipe is somebody else's now.
TEST(EventsOf, AStrangersPipeIsLeftAlone) {
  std::array<int, 2> old{};
  std::array<int, 2> other{};
  ASSERT_EQ(pipe(old.data()), 0);
  ASSERT_EQ(pipe(other.data()), 0);
  Doorbell bell;
  bell.arm();
  bell.ring();  // without a pipe
  bell.set_pipe(old[1]);
  bell.arm();
  bell.ring();
  EXPECT_TRUE(readable(old[0]));
  bell.arm();
  ASSERT_EQ(dup2(other[1], old[1]), old[1]);
  bell.ring();
  EXPECT_FALSE(readable(other[0]));
  const int file = fileno(std::tmpfile());
  bell.arm();
  ASSERT_EQ(dup2(file, old[1]), old[1]);
  bell.ring();
  EXPECT_EQ(lseek(file, 0, SEEK_END), 0);
  for (const int descriptor : {old[0], old[1], other[0], other[1]}) close(descriptor);
}

}  // namespace
}  // namespace m2n::testing
