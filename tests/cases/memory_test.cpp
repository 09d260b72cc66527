// channel_sizes against the bytes that opening a channel really allocates, counted per rank: each
// is a thread, and every operator new of this program counts for the thread that calls it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "tests/decorated/hooked.hpp"

namespace {

thread_local std::ptrdiff_t live_bytes = 0;
thread_local std::size_t fails_from = 0;   // allocations of so many bytes
thread_local std::size_t fails_after = 0;  // once so many of them were granted
thread_local bool has_failed = false;

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc{};
  live_bytes += static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  return memory;
}

void may_fail(std::size_t bytes) {
  if (fails_from == 0 || bytes < fails_from || fails_after-- != 0) return;
  fails_from = 0;
  has_failed = true;
  throw std::bad_alloc{};
}

void uncounted(void* memory) noexcept {
  live_bytes -= static_cast<std::ptrdiff_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// All forms that are in use: those of the sanitizers do not call these.
void* operator new(std::size_t bytes) {
  may_fail(bytes);
  return counted(std::malloc(bytes != 0 ? bytes : 1));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  may_fail(bytes);
  const auto to = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(to, (bytes + to - 1) / to * to));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes) {
  return ::operator new(bytes);
}
void operator delete[](void* memory) noexcept {
  uncounted(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  uncounted(memory);
}
void operator delete(void* memory) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  uncounted(memory);
}

namespace m2n::testing {
namespace {

struct Counted {
  std::size_t bytes = 0;
  bool attends = false;
};

// What each rank holds once the channel is open.
std::vector<Counted> open_and_count(const Scenario& scenario) {
  std::mutex mutex;
  std::vector<Counted> all;
  run_ranks(scenario.ranks, [&](Rank& rank) {
    const ChannelConfig config = scenario.channel;
    const std::ptrdiff_t before = live_bytes;
    Result<Channel> channel = rank.group.open(config);
    const std::ptrdiff_t after = live_bytes;
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    const std::lock_guard lock{mutex};
    all.push_back({static_cast<std::size_t>(after - before), rank.attends()});
  });
  return all;
}

void expect_counted(const Scenario& scenario, bool mapped = true) {
  const std::uint32_t m = scenario.ranks.attention;
  const std::uint32_t n = scenario.ranks.experts;
  const Result<ChannelSizes> sizes = channel_sizes(scenario.channel, m, n);
  ASSERT_TRUE(bool(sizes)) << sizes.status().text();
  const std::vector<Counted> all = open_and_count(scenario);
  EXPECT_EQ(all.size(), m + n);
  for (const Counted& rank : all) {
    std::size_t told = rank.attends ? sizes->attention_bytes : sizes->expert_bytes;
    if (!mapped) {  // nobody could read an arena
      told += rank.attends ? sizes->attention_staging_bytes : sizes->expert_staging_bytes;
      told -= rank.attends ? sizes->arena_bytes : 0;
    }
    // Hellos in the store, tables of the transport and the like.
    constexpr std::size_t odds_and_ends = 16 << 10;
    EXPECT_LE(rank.bytes, told + told / 20 + odds_and_ends)
        << (rank.attends ? "attention" : "expert");
    EXPECT_GE(rank.bytes + rank.bytes / 20 + odds_and_ends, told)
        << (rank.attends ? "attention" : "expert");
  }
}

Scenario scenario_of(std::uint32_t m, std::uint32_t n, const ChannelConfig& channel) {
  Scenario scenario;
  scenario.ranks.attention = m;
  scenario.ranks.experts = n;
  scenario.channel = channel;
  scenario.channel.placement = Placement::block(channel.experts, n);
  return scenario;
}

TEST(I55, MemoryIsWhatTheSizesSay) {
  struct Case {
    const char* name;
    std::uint32_t m, n, tokens, hidden, depth;
    std::function<void(ChannelConfig&)> adjust;
  };
  const Case cases[] = {
      {"lockstep", 2, 3, 64, 512, 2, [](ChannelConfig&) {}},
      {"small rows: mostly bookkeeping", 2, 2, 4096, 16, 4, [](ChannelConfig&) {}},
      {"touched", 4, 2, 2048, 16, 2,
       [](ChannelConfig& config) { config.presence = Presence::touched; }},
      {"shared", 3, 3, 2048, 64, 2,
       [](ChannelConfig& config) { config.exchange = ExchangeKind::shared; }},
      {"grouped", 3, 2, 2048, 16, 2,
       [](ChannelConfig& config) { config.layout = Layout::grouped; }},
      {"packed, touched", 2, 2, 1024, 16, 2,
       [](ChannelConfig& config) {
         config.layout = Layout::packed;
         config.presence = Presence::touched;
       }},
      {"per expert", 2, 2, 512, 64, 1,
       [](ChannelConfig& config) { config.combine = Combine::per_expert; }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    ChannelConfig config = usual_channel(24, 4, one.hidden, one.tokens);
    config.depth = one.depth;
    one.adjust(config);
    expect_counted(scenario_of(one.m, one.n, config));
  }
}

TEST(I55, BookkeepingAlone) {
  // Windows would hide a wrong count of the rest: compare what many experts add.
  ChannelConfig config = usual_channel(60'000, 2, 16, 8);
  expect_counted(scenario_of(2, 2, config));
  config = usual_channel(8, 8, 1, 20'000);
  config.payload = DataType::i8;
  expect_counted(scenario_of(1, 1, config));
}

TEST(I55, StagingIsToldWhereMemoryIsNotMapped) {
  const Hooked hooked{reordered(5)};
  expect_counted(scenario_of(2, 3, usual_channel(24, 4, 256, 64)), false);
}

// The k-th allocation of some size fails in open, for k = 0, 1, ... until none does.
TEST(Memory, ThatIsShortEndsOpenExhausted) {
  for (const Layout layout : {Layout::rows, Layout::grouped}) {
    ChannelConfig config = usual_channel(24, 4, 64, 512);
    config.layout = layout;
    Result<Group> group = Group::create(GroupConfig::both(1, 0), make_inproc_store());
    ASSERT_TRUE(bool(group)) << group.status().text();
    std::size_t failures = 0;
    for (std::size_t k = 0; k < 200; ++k) {
      has_failed = false;
      fails_after = k;
      fails_from = 4096;
      const std::ptrdiff_t before = live_bytes;
      Result<Channel> channel = group->open(config);
      fails_from = 0;
      if (!has_failed) {
        EXPECT_TRUE(bool(channel)) << channel.status().text();
        break;
      }
      ++failures;
      // A window that the transport cannot allocate is its own refusal.
      EXPECT_TRUE(channel.code() == Code::exhausted || channel.code() == Code::system)
          << k << ": " << channel.status().text();
      EXPECT_NE(channel.status().text().find("ChannelConfig::"), std::string::npos)
          << channel.status().text();
      channel = Code::again;
      EXPECT_LT(live_bytes - before, 65536) << "what had been allocated is given back";
    }
    EXPECT_GE(failures, 10u);
  }
}

}  // namespace
}  // namespace m2n::testing
