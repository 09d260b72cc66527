// Event descriptors between processes: nothing is lost, and a death is an event.
#include <poll.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/transport/hub.hpp"

namespace m2n::testing {
namespace {

using namespace m2n::transport;
using namespace std::chrono_literals;

// Ping-pong where both processes sleep in poll, without a re-check.
TEST(EventsProcess, APutWakesAnEventLoop) {
  constexpr std::uint64_t rounds = 1500;
  std::vector<Process> children;
  for (std::uint32_t me = 0; me < 2; ++me) {
    children.emplace_back([me](int socket) {
      auto self = join_hub(socket, me, 2);
      const auto events = self ? self->transport->event_descriptor() : Result<int>{Code::system};
      if (!events) return 2;
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        if (me == 0 && !self->put(1, {}, 0, 0)) return 3;
        while (true) {
          if (!self->transport->arm_events(0ns)) return 4;
          if (load_acquire(self->word(0)) >= round) break;
          pollfd entry{*events, POLLIN, 0};
          if (poll(&entry, 1, 50'000) != 1) return 5;
        }
        if (me == 1 && !self->put(0, {}, 0, 0)) return 3;
        if (!self->pump()) return 6;
      }
      return 0;
    });
  }
  EXPECT_TRUE(serve_hub(children));
  for (Process& child : children) EXPECT_EQ(child.wait(), 0);
}

// An event loop is told at once, also of a peer that it knew before it asked for a descriptor, and
// of one whose death was taken between arming and sleeping.
TEST(EventsProcess, ADeathWakesAnEventLoop) {
  Endpoint self = open_endpoint(0);
  std::vector<Process> children;
  int events = -1;
  const auto readable = [&](int limit_ms) {
    pollfd entry{events, POLLIN, 0};
    return poll(&entry, 1, limit_ms) == 1;
  };
  for (std::uint32_t rank : {1u, 2u, 3u}) {
    children.emplace_back([rank](int socket) {
      Endpoint peer = open_endpoint(rank);
      send_blob(socket, peer.transport->address());
      receive_blob(socket);
      return 0;
    });
    const auto address = receive_blob(children.back().socket());
    ASSERT_TRUE(address && self.transport->connect(*address));
    if (rank == 1) events = *self.transport->event_descriptor();
  }
  for (const std::size_t victim : {0u, 1u}) {
    ASSERT_TRUE(self.transport->arm_events(0ns));
    EXPECT_FALSE(readable(0));
    children[victim].kill_now();
    EXPECT_TRUE(readable(20'000));
    ASSERT_TRUE(self.transport->arm_events(0ns));
    EXPECT_TRUE(readable(0)) << "until it is taken";
    EXPECT_EQ(self.transport->take_failure().peer(), static_cast<std::int32_t>(victim + 1));
  }
  ASSERT_TRUE(self.transport->arm_events(0ns));
  EXPECT_FALSE(readable(0));
  children[2].kill_now();
  children[2].await_death();
  EXPECT_EQ(self.transport->take_failure().peer(), 3);
  EXPECT_TRUE(readable(0));
}

// Where the kernel has no process handles, a death is found by looking, before it is reaped and
// after.
TEST(EventsProcess, ADeathIsFoundWithoutProcessHandles) {
  ShmSettings settings;
  settings.process_handles = false;
  auto opened = open_shm({"job", 0, 0}, settings);
  ASSERT_TRUE(opened);
  Endpoint self = make_endpoint(std::move(*opened));
  const std::size_t descriptors = open_descriptors();
  std::vector<Process> children;
  for (std::uint32_t rank : {1u, 2u}) {
    children.emplace_back([rank](int socket) {
      Endpoint peer = open_endpoint(rank);
      send_blob(socket, peer.transport->address());
      receive_blob(socket);
      return 0;
    });
    const auto address = receive_blob(children.back().socket());
    ASSERT_TRUE(address && self.transport->connect(*address));
  }
  EXPECT_EQ(open_descriptors(), descriptors + 2) << "the sockets";
  const int events = *self.transport->event_descriptor();
  ASSERT_TRUE(self.transport->arm_events(20ms));
  kill(children[0].pid(), SIGSTOP);
  EXPECT_TRUE(self.transport->take_failure()) << "a stopped peer is not dead";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(self.transport->take_failure()) << "nor is one that cannot be looked at";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  children[0].kill_now();
  children[0].await_death();
  pollfd entry{events, POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 20'000), 1) << "the re-check";
  EXPECT_EQ(self.transport->take_failure().peer(), 1);
  children[1].kill_now();
  children[1].wait();
  EXPECT_EQ(self.transport->take_failure().peer(), 2);
  EXPECT_TRUE(self.transport->take_failure()) << "once each";
}

}  // namespace
}  // namespace m2n::testing
