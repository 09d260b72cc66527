// Shared memory between processes: data, waking, death, fork, and what a kill leaves behind.
#include <fcntl.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "tests/transport/hub.hpp"
#include "tests/transport/process.hpp"
#include "tests/transport/rig.hpp"
#include "transport/shm_blob.hpp"

namespace m2n::testing {
namespace {

using namespace m2n::transport;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(ShmProcess, DataIsExactBetweenProcesses) {
  constexpr std::uint32_t count = 4;
  constexpr std::uint64_t rounds = 50;
  constexpr std::size_t slot = 8192;
  std::vector<Process> children;
  for (std::uint32_t me = 0; me < count; ++me) {
    children.emplace_back([me](int socket) {
      auto self = join_hub(socket, me, count);
      if (!self) return 2;
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        for (std::uint32_t to = 0; to < count; ++to) {
          for (std::size_t i = 0; i < slot; ++i) {
            self->source_base()[to * slot + i] = pattern(round * 100 + me * 10 + to, i);
          }
          const std::array<Segment, 2> halves{
              Segment{self->source, to * slot, slot / 2},
              Segment{self->source, to * slot + slot / 2, slot / 2}};
          if (!self->put(to, halves, payload_offset + me * slot, me)) return 3;
        }
        for (std::uint32_t from = 0; from < count; ++from) {
          if (!wait_until(&*self, [&] { return load_acquire(self->word(from)) == round; }))
            return 4;
          const std::byte* got = self->window_base() + payload_offset + from * slot;
          for (std::size_t i = 0; i < slot; ++i) {
            if (got[i] != pattern(round * 100 + from * 10 + me, i)) return 5;
          }
          if (!self->put(from, {}, 0, 32 + me)) return 3;
        }
        for (std::uint32_t to = 0; to < count; ++to) {
          if (!wait_until(&*self, [&] { return load_acquire(self->word(32 + to)) == round; })) {
            return 6;
          }
        }
      }
      return 0;
    });
  }
  EXPECT_TRUE(serve_hub(children));
  for (Process& child : children) EXPECT_EQ(child.wait(), 0);
}

// Ping-pong where both processes sleep between messages, longer than the test may take.
TEST(ShmProcess, APutWakesASleepingProcess) {
  constexpr std::uint64_t rounds = 500;
  std::vector<Process> children;
  for (std::uint32_t me = 0; me < 2; ++me) {
    children.emplace_back([me](int socket) {
      auto self = join_hub(socket, me, 2);
      if (!self) return 2;
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        const auto ready = [&] { return load_acquire(self->word(0)) >= round; };
        if (me == 0 && !self->put(1, {}, 0, 0)) return 3;
        const auto end = Clock::now() + 50s;
        while (!ready() && Clock::now() < end) self->transport->doorbell().sleep(ready, 60s);
        if (!ready()) return 4;
        if (me == 1 && !self->put(0, {}, 0, 0)) return 3;
        if (!self->pump()) return 5;
      }
      return 0;
    });
  }
  EXPECT_TRUE(serve_hub(children));
  for (Process& child : children) EXPECT_EQ(child.wait(), 0);
}

// Killed in mid exchange, again and again: no entry in the directory and no block of it stays.
TEST(ShmProcess, AKillLeavesNothing) {
  const ScratchDirectory directory;
  Process sandbox{[&](int) {
    // Its own file system, where nobody else takes or frees space.
    if (!mount_private_tmpfs(directory.path(), 64u << 20)) return not_permitted;
    const auto free_blocks = [&] {
      struct statvfs room {};
      statvfs(directory.path().c_str(), &room);
      return room.f_bfree;
    };
    const auto before = free_blocks();
    for (int loop = 0; loop < 30; ++loop) {
      std::vector<Process> ranks;
      for (std::uint32_t me = 0; me < 3; ++me) {
        ranks.emplace_back([&, me](int socket) {
          auto self = join_hub(socket, me, 3, directory.path());
          if (!self || !send_blob(socket, {})) return 2;
          const Segment piece{self->source, 0, 100'000};
          for (std::uint32_t to = 0;; to = (to + 1) % 3) {
            if (!self->put(to, {&piece, 1}, payload_offset, me) || !self->pump()) return 3;
          }
        });
      }
      if (!serve_hub(ranks)) return 4;
      for (Process& rank : ranks) {
        if (!receive_blob(rank.socket())) return 5;
      }
      if (free_blocks() >= before) return 6;  // the measure works
      for (Process& rank : ranks) rank.kill_now();
      for (Process& rank : ranks) {
        if (rank.wait() != 128 + SIGKILL) return 7;
      }
      if (directory.entries() != 0) return 8;
      if (free_blocks() != before) return 9;
    }
    return 0;
  }};
  const int result = sandbox.wait();
  if (result == not_permitted) GTEST_SKIP() << "mounting a tmpfs in a namespace is not permitted";
  EXPECT_EQ(result, 0);
}

// Reported by the first take_failure() after the death, by name, once each.
TEST(ShmProcess, ADeadPeerIsReportedByName) {
  std::vector<Process> children;
  for (std::uint32_t rank : {5u, 6u}) {
    children.emplace_back([rank](int socket) {
      Endpoint self = open_endpoint(rank);
      if (!send_blob(socket, self.transport->address())) return 2;
      if (!send_blob(socket, self.window_blob)) return 2;
      receive_blob(socket);
      return 0;
    });
  }
  Endpoint self = open_endpoint(0);
  for (Process& child : children) {
    const auto address = receive_blob(child.socket());
    const auto window = receive_blob(child.socket());
    ASSERT_TRUE(address && window);
    self.peers.push_back(*self.transport->connect(*address));
    self.windows.push_back(*self.transport->import_memory(self.peers.back(), *window));
  }
  EXPECT_TRUE(self.transport->take_failure());
  kill(children[0].pid(), SIGSTOP);
  EXPECT_TRUE(self.transport->take_failure()) << "a stopped peer is not dead";
  for (Process& child : children) {
    child.kill_now();
    child.await_death();
  }
  std::array<bool, 2> reported{};
  for (int i = 0; i < 2; ++i) {
    const Status status = self.transport->take_failure();
    EXPECT_EQ(status.code(), Code::peer_failed);
    EXPECT_EQ(status.scope(), Scope::peer);
    ASSERT_TRUE(status.peer() == 5 || status.peer() == 6) << status.text();
    EXPECT_NE(status.text().find("rank " + std::to_string(status.peer())), std::string::npos);
    reported[static_cast<std::size_t>(status.peer() - 5)] = true;
  }
  EXPECT_TRUE(reported[0] && reported[1]);
  EXPECT_TRUE(self.transport->take_failure()) << "once each";
  // Its memory is still mapped, but putting there is refused.
  EXPECT_EQ(self.put(0, {}, 0, 0).code(), Code::peer_failed);
  self.transport->notify(self.peers[0]);
}

// A sleeping owner does not learn of a death by its doorbell: it looks every 20 ms.
TEST(ShmProcess, ADeathIsSeenWithinTheRecheck) {
  Process child{[](int socket) {
    Endpoint self = open_endpoint(3);
    send_blob(socket, self.transport->address());
    receive_blob(socket);
    return 0;
  }};
  Endpoint self = open_endpoint(0);
  const auto address = receive_blob(child.socket());
  ASSERT_TRUE(address);
  // A refused connect leaves no descriptor of the living process behind.
  ShmBlob forged = *parse_shm_blob(*address);
  forged.nonce[0] ^= 1;
  const std::size_t descriptors = open_descriptors();
  EXPECT_EQ(self.transport->connect(write_shm_blob(forged)).code(), Code::peer_failed);
  EXPECT_EQ(open_descriptors(), descriptors);
  ASSERT_TRUE(self.transport->connect(*address));
  const auto end = Clock::now() + 10s;
  child.kill_now();
  Status failure;
  int looks = 0;
  while (failure && Clock::now() < end) {
    self.transport->doorbell().sleep([] { return false; }, 20ms);
    failure = self.transport->take_failure();
    ++looks;
  }
  EXPECT_EQ(failure.peer(), 3);
  EXPECT_LE(looks, 5) << "100 ms";
}

TEST(ShmProcess, AConnectToADeadProcessFailsClearly) {
  Blob address;
  {
    Process child{[](int socket) {
      Endpoint self = open_endpoint(9);
      send_blob(socket, self.transport->address());
      receive_blob(socket);
      return 0;
    }};
    address = receive_blob(child.socket()).value_or(Blob{});
    ASSERT_FALSE(address.empty());
  }
  ShmSettings settings;
  settings.patience = 50ms;
  const std::size_t descriptors = open_descriptors();
  auto self = open_shm({"job", 0, 0}, settings);
  ASSERT_TRUE(self);
  const auto refused = (*self)->connect(address);
  EXPECT_EQ(refused.code(), Code::peer_failed);
  EXPECT_EQ(refused.status().peer(), 9);
  EXPECT_NE(refused.status().text().find("rank 9"), std::string::npos) << refused.status().text();
  EXPECT_EQ(open_descriptors(), descriptors + 1);
}

// A forked child may drop its copy of a transport: the owner's memory, descriptors and peers stay,
// and numbers that the child uses for something else are not closed.
TEST(ShmProcess, AForkedCopyHarmsNobody) {
  std::vector<Endpoint> ranks;
  for (std::uint32_t rank : {0u, 1u}) ranks.push_back(open_endpoint(rank));
  join(ranks);
  const std::size_t descriptors = open_descriptors();
  Process child{[&](int) {
    const auto blob = parse_shm_blob(ranks[0].window_blob);
    const int other = open("/dev/null", O_RDONLY);
    if (dup2(other, blob->descriptor) != blob->descriptor) return 2;
    ranks.clear();
    if (fcntl(blob->descriptor, F_GETFD) < 0) return 3;
    return 0;
  }};
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(open_descriptors(), descriptors + 1);  // the child's socket
  ASSERT_TRUE(ranks[0].put(1, {}, 0, 4));
  EXPECT_EQ(load_acquire(ranks[1].word(4)), 1u);
  EXPECT_TRUE(ranks[0].transport->take_failure());
  EXPECT_TRUE(ranks[0].transport->export_memory(ranks[0].window));
}

// Where process ids mean something else, the other file is noticed.
TEST(ShmProcess, AnotherPidNamespaceIsAClearError) {
  Endpoint self = open_endpoint(0);
  Process outer{[&](int) {
    if (unshare(CLONE_NEWPID) != 0) return not_permitted;
    Process inner{[&](int socket) {
      ShmSettings settings;
      settings.patience = 20ms;
      auto opened = open_shm({"job", 1, 0}, settings);
      if (!opened) return 2;
      send_blob(socket, (*opened)->address());
      receive_blob(socket);
      return 0;
    }};
    const auto address = receive_blob(inner.socket());
    if (!address) return 3;
    ShmSettings settings;
    settings.patience = 20ms;
    auto opened = open_shm({"job", 2, 0}, settings);
    const auto refused = (*opened)->connect(*address);
    if (refused.code() != Code::peer_failed) return 4;
    return refused.status().text().find("namespace") != std::string::npos ? 0 : 5;
  }};
  const int result = outer.wait();
  if (result == not_permitted) GTEST_SKIP() << "a new process-id namespace is not permitted";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace m2n::testing
