// The contract of a transport between threads: visibility, concurrent pairs, sleeping and waking,
// mapped words, and what the per-round path must not do.
#include <sched.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "tests/transport/allocations.hpp"
#include "tests/transport/rig.hpp"

namespace m2n::testing {
namespace {

using namespace m2n::transport;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class ContractThreads : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, ContractThreads, ::testing::ValuesIn(all_kinds()), name_of);

class Bare : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, Bare, ::testing::Values(Kind{"inproc", ""}, Kind{"shm", ""}),
                         name_of);

// A reader that sees the word sees every byte of that put.
TEST_P(ContractThreads, DataIsThereWhenTheWordIs) {
  auto ranks = make_endpoints(GetParam(), 2);
  constexpr std::uint64_t rounds = 200;
  constexpr std::size_t bytes = 6000;
  std::atomic<std::uint64_t> wrong{0};
  std::thread reader{[&] {
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      if (!wait_until(&ranks[1], [&] { return load_acquire(ranks[1].word(0)) == round; })) break;
      const std::byte* got = ranks[1].window_base() + payload_offset;
      std::uint64_t bad = 0;
      for (std::size_t i = 0; i < bytes; ++i) bad += got[i] != pattern(round, i);
      wrong += bad;
      EXPECT_TRUE(ranks[1].put(0, {}, 0, 0));
    }
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(ranks[1].pump());
  }};
  const std::array<Segment, 3> pieces{Segment{ranks[0].source, 0, 1},
                                      Segment{ranks[0].source, 1, 4000},
                                      Segment{ranks[0].source, 4001, bytes - 4001}};
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    for (std::size_t i = 0; i < bytes; ++i) ranks[0].source_base()[i] = pattern(round, i);
    if (!ranks[0].put(1, pieces, payload_offset, 0)) break;
    if (!wait_until(&ranks[0], [&] { return load_acquire(ranks[0].word(0)) == round; })) break;
  }
  EXPECT_EQ(load_acquire(ranks[0].word(0)), rounds);
  reader.join();
  EXPECT_EQ(wrong.load(), 0u);
}

// The same for a put that takes long, by a reader that spins and looks at its end first: a word
// that is raised before its bytes are there shows.
TEST_P(Bare, TheWordComesAfterTheLastByte) {
  auto ranks = make_endpoints(GetParam(), 2);
  constexpr std::uint64_t rounds = 300;
  constexpr std::size_t bytes = window_bytes - payload_offset;
  const auto end = Clock::now() + 30s;
  const auto spin = [&](Endpoint& self, std::uint64_t round) {
    for (std::uint64_t i = 1; load_acquire(self.word(0)) < round; ++i) {
      if (i % 4096 != 0) continue;
      if (Clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  };
  std::uint64_t wrong = 0;
  std::thread reader{[&] {
    const std::byte* got = ranks[1].window_base() + payload_offset;
    for (std::uint64_t round = 1; round <= rounds && spin(ranks[1], round); ++round) {
      const auto value = static_cast<std::byte>(round);
      if (got[bytes - 1] != value || got[bytes / 2] != value || got[0] != value) ++wrong;
      EXPECT_TRUE(ranks[1].put(0, {}, 0, 0));
    }
  }};
  const Segment piece{ranks[0].source, 0, bytes};
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    std::memset(ranks[0].source_base(), static_cast<int>(round % 256), bytes);
    EXPECT_TRUE(ranks[0].put(1, {&piece, 1}, payload_offset, 0));
    if (!spin(ranks[0], round)) break;
  }
  reader.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(load_acquire(ranks[0].word(0)), rounds);
}

// Everybody sends to everybody at once; slot and word of a message depend on its sender.
TEST_P(ContractThreads, PairsDoNotDisturbEachOther) {
  constexpr std::uint32_t count = 4;
  constexpr std::uint64_t rounds = 40;
  constexpr std::size_t slot = 1024;
  auto ranks = make_endpoints(GetParam(), count);
  std::atomic<std::uint64_t> wrong{0};
  const auto run = [&](std::uint32_t me) {
    Endpoint& self = ranks[me];
    const auto seed = [](std::uint64_t round, std::uint32_t from, std::uint32_t to) {
      return round * 100 + from * 10 + to;
    };
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      for (std::uint32_t to = 0; to < count; ++to) {
        const std::size_t at = slot * to;
        for (std::size_t i = 0; i < slot; ++i) {
          self.source_base()[at + i] = pattern(seed(round, me, to), i);
        }
        const Segment piece{self.source, at, slot};
        EXPECT_TRUE(self.put(to, {&piece, 1}, payload_offset + slot * me, me));
      }
      for (std::uint32_t from = 0; from < count; ++from) {
        if (!wait_until(&self, [&] { return load_acquire(self.word(from)) == round; })) return;
        const std::byte* got = self.window_base() + payload_offset + slot * from;
        std::uint64_t bad = 0;
        for (std::size_t i = 0; i < slot; ++i) bad += got[i] != pattern(seed(round, from, me), i);
        wrong += bad;
        EXPECT_TRUE(self.put(from, {}, 0, 32 + me));  // read
      }
      for (std::uint32_t to = 0; to < count; ++to) {
        if (!wait_until(&self, [&] { return load_acquire(self.word(32 + to)) == round; })) return;
      }
    }
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(self.pump());
  };
  std::vector<std::thread> threads;
  for (std::uint32_t me = 0; me < count; ++me) threads.emplace_back(run, me);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  for (Endpoint& self : ranks) {
    for (std::uint32_t from = 0; from < count; ++from) {
      EXPECT_EQ(load_acquire(self.word(from)), rounds);
    }
  }
}

// Both sides sleep between messages, far longer than the whole test may take: one lost wake-up
// shows.
TEST_P(ContractThreads, APutWakesASleeper) {
  auto ranks = make_endpoints(GetParam(), 2);
  constexpr std::uint64_t rounds = 400;
  const bool holds = GetParam().decorator == "faulty" || GetParam().decorator == "reorder";
  const auto end = Clock::now() + 55s;
  const auto sleep_for = [&](Endpoint& self, std::uint64_t round) {
    const auto ready = [&] { return load_acquire(self.word(0)) >= round; };
    while (!ready() && Clock::now() < end) {
      EXPECT_TRUE(self.pump());
      // A put that is held back needs its sender awake.
      self.transport->doorbell().sleep(ready, holds ? 1ms : 60s);
    }
    return ready();
  };
  std::thread other{[&] {
    for (std::uint64_t round = 1; round <= rounds && sleep_for(ranks[1], round); ++round) {
      EXPECT_TRUE(ranks[1].put(0, {}, 0, 0));
    }
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(ranks[1].pump());
  }};
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    ASSERT_TRUE(ranks[0].put(1, {}, 0, 0));
    if (!sleep_for(ranks[0], round)) break;
  }
  EXPECT_EQ(load_acquire(ranks[0].word(0)), rounds);
  // Frees the other side if this one gave up.
  ranks[1].transport->doorbell().ring_sleepers();
  other.join();
  EXPECT_LT(Clock::now(), end);
}

// The two moments in which a wake-up could be lost, one after the other.
TEST(Doorbell, NothingIsLostOnTheWayToSleep) {
  Doorbell bell;
  const auto start = Clock::now();
  bell.sleep([] { return true; }, 30s);  // published before the sleeper was counted
  bell.sleep(
      [&bell] {
        EXPECT_EQ(bell.sleepers.load(), 1u);
        bell.ring();  // published after it looked
        return false;
      },
      30s);
  EXPECT_LT(Clock::now() - start, 20s);
  EXPECT_EQ(bell.sleepers.load(), 0u);
  bell.sleep([] { return false; }, 0ns);
  bell.sleep([] { return false; }, 1ms);
}

// Wraps the notify of a bare transport: every 10th is lost.
class Swallowing {
 public:
  explicit Swallowing(Endpoint& endpoint) : endpoint_{endpoint} {}
  void notify(std::size_t rank) {
    if (++calls_ % 10 != 0) endpoint_.transport->notify(endpoint_.peers[rank]);
  }

 private:
  Endpoint& endpoint_;
  std::uint64_t calls_ = 0;
};

// A ring is only a hint: with a limit on each sleep a lost one costs time and nothing else.
TEST_P(Bare, ALostRingCostsOnlyTheRecheck) {
  auto ranks = make_endpoints(GetParam(), 2);
  constexpr std::uint64_t rounds = 503;
  const auto run = [&](std::size_t me) {
    Endpoint& self = ranks[me];
    Swallowing bell{self};
    std::uint64_t* theirs = self.transport->map_signal(self.signal(1 - me, 0));
    ASSERT_NE(theirs, nullptr);
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      const auto ready = [&] { return load_acquire(self.word(0)) >= round; };
      if (me == 0) {
        publish(theirs, round);
        bell.notify(1);
      }
      const auto end = Clock::now() + 10s;
      while (!ready() && Clock::now() < end) self.transport->doorbell().sleep(ready, 5ms);
      ASSERT_TRUE(ready()) << "round " << round;
      if (me == 1) {
        publish(theirs, round);
        bell.notify(0);
      }
    }
  };
  std::thread other{run, 1};
  run(0);
  other.join();
}

TEST_P(Bare, MappedMemoryIsThePeersMemory) {
  auto ranks = make_endpoints(GetParam(), 2);
  std::byte* window = ranks[0].transport->map(ranks[0].windows[1]);
  std::uint64_t* word = ranks[0].transport->map_signal(ranks[0].signal(1, 7));
  ASSERT_NE(window, nullptr);
  ASSERT_EQ(reinterpret_cast<std::byte*>(word), window + 7 * 64);
  std::thread writer{[&] {
    std::memset(window + payload_offset, 0x5a, 10000);
    publish(word, 1);
    ranks[0].transport->notify(ranks[0].peers[1]);
  }};
  const auto ready = [&] { return load_acquire(ranks[1].word(7)) == 1; };
  while (!ready()) ranks[1].transport->doorbell().sleep(ready, 10s);
  for (std::size_t i = 0; i < 10000; ++i) {
    ASSERT_EQ(ranks[1].window_base()[payload_offset + i], std::byte{0x5a});
  }
  writer.join();
  EXPECT_EQ(ranks[0].transport->map(RemoteId{1234}), nullptr);
  EXPECT_EQ(ranks[0].transport->map_signal(ranks[0].signal(1, words)), nullptr);
}

TEST_P(Bare, NothingIsAllocatedAfterSetUp) {
  auto ranks = make_endpoints(GetParam(), 2);
  std::array<Completion, 8> done;
  const Segment piece{ranks[0].source, 0, 3000};
  const SignalRef signal = ranks[0].signal(1, 0);
  const std::uint64_t before = allocations();
  for (std::uint64_t i = 0; i < 2000; ++i) {
    while (!ranks[0].transport->put(ranks[0].peers[1], {&piece, 1},
                                    {ranks[0].windows[1], payload_offset}, signal, i)) {
      ranks[0].transport->progress(done);
    }
    ranks[0].transport->notify(ranks[0].peers[1]);
    static_cast<void>(ranks[0].transport->map_signal(signal));
    static_cast<void>(ranks[0].transport->take_failure());
  }
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(load_acquire(ranks[1].word(0)), 2000u);
  // The count itself works.
  const auto one = std::make_unique<std::array<char, 100>>();
  EXPECT_GT(allocations(), before);
}

// A library must leave these to the process.
TEST_P(Bare, AffinityAndSignalsStayAsTheyWere) {
  const auto signals = [] {
    std::map<int, void (*)(int)> found;
    for (int number = 1; number < 32; ++number) {
      struct sigaction action {};
      if (sigaction(number, nullptr, &action) == 0) found[number] = action.sa_handler;
    }
    return found;
  };
  cpu_set_t before{};
  cpu_set_t after{};
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const auto handlers = signals();
  {
    auto ranks = make_endpoints(GetParam(), 2);
    ASSERT_TRUE(ranks[0].put(1, {}, 0, 0));
  }
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  EXPECT_EQ(signals(), handlers);
}

}  // namespace
}  // namespace m2n::testing
