// Both ends of one pair on one thread, over mapped memory and over puts that are held, refused and
// reordered: rounds, rotation, rows that are ready early, and control messages.
#include "collectives/pair_link.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "tests/support/decorators.hpp"
#include "tests/support/payload.hpp"
#include "transport/doorbell.hpp"
#include "transport/registry.hpp"

namespace m2n::testing {
namespace {

using namespace collectives;

std::unique_ptr<transport::Transport> open_one(const std::string& kind, std::uint32_t rank) {
  auto opened = transport::open_transport("inproc", {"pair-link", rank, 0});
  if (!opened) return nullptr;
  if (kind == "counted") {
    return std::make_unique<CountedTransport>(std::move(*opened), std::make_shared<Counts>());
  }
  if (kind == "reorder") return std::make_unique<ReorderTransport>(std::move(*opened), 7 + rank);
  if (kind == "faulty") {
    auto faults = std::make_shared<Faults>();
    faults->again_every = 3;
    faults->delay_every = 4;
    return std::make_unique<FaultyTransport>(std::move(*opened), faults);
  }
  return std::move(*opened);
}

// Ends 0 and 1 of a pair; 0 sends rounds of the layout, 1 answers with the same one.
struct Joined {
  std::unique_ptr<Worker> workers[2];
  std::unique_ptr<PairLink> links[2];

  void pump() {
    workers[0]->pump();
    workers[1]->pump();
  }
  // Until done() holds; false if that takes very many tries.
  template <class Done>
  bool pump_until(Done&& done) {
    for (int i = 0; i < 10'000; ++i) {
      if (done()) return true;
      pump();
    }
    return false;
  }
};

Joined join(const std::string& kind, const WindowLayout& layout) {
  Joined joined;
  for (std::uint32_t i = 0; i < 2; ++i) {
    joined.workers[i] = std::make_unique<Worker>(open_one(kind, i), i, 0);
    auto link = PairLink::create(*joined.workers[i], {layout, layout, 1 - i, false});
    EXPECT_TRUE(bool(link)) << link.status().text();
    joined.links[i] = std::move(*link);
  }
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto blob = joined.links[1 - i]->export_window();
    const auto peer =
        joined.workers[i]->connect(1 - i, 0, joined.workers[1 - i]->transport().address());
    EXPECT_TRUE(blob && peer);
    EXPECT_TRUE(bool(joined.links[i]->attach(*peer, *blob)));
  }
  for (const auto& link : joined.links) link->seal();
  return joined;
}

WindowLayout small_layout(std::uint32_t depth, std::uint32_t tokens = 8) {
  ChannelConfig config;
  config.hidden = 32;
  config.max_tokens = tokens;
  config.depth = depth;
  config.placement = Placement::block(1, 1);
  return *dispatch_window(config, 1);
}

std::byte byte_of(std::uint64_t round, std::size_t i) {
  return static_cast<std::byte>((round * 131 + i * 7 + i / 256) & 0xFF);
}

// Writes a round of `bytes` bytes and says that it is complete; its body's offset, or 0.
std::size_t send_round(PairLink& link, std::uint64_t round, std::size_t bytes) {
  std::byte* slot = link.begin(round);
  if (slot == nullptr) return 0;
  auto& header = *reinterpret_cast<SlotHeader*>(slot);
  header.operation = round;
  header.rows = static_cast<std::uint32_t>(bytes);
  header.body_offset = link.place(round, bytes);
  for (std::size_t i = 0; i < bytes; ++i) slot[header.body_offset + i] = byte_of(round, i);
  const std::size_t offset = header.body_offset;
  link.finish(round, bytes);
  return offset;
}

void expect_round(const PairLink& link, std::uint64_t round, std::size_t bytes) {
  const SlotHeader& header = link.header(round);
  ASSERT_EQ(header.operation, round);
  ASSERT_EQ(header.rows, bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(link.slot(round)[header.body_offset + i], byte_of(round, i)) << "byte " << i;
  }
}

class EveryLink : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryLink, RoundsGoBothWaysInSlots) {
  for (std::uint32_t depth = 1; depth <= 4; ++depth) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    const WindowLayout layout = small_layout(depth);
    Joined joined = join(GetParam(), layout);
    EXPECT_EQ(joined.links[0]->mapped(), std::string{GetParam()} == "mapped");
    Random random{depth};
    std::uint64_t sent = 0;
    std::vector<std::size_t> size;
    for (std::uint64_t read = 0; read < 40; ++read) {
      for (; sent < read + depth; ++sent) {  // as many as there are credits
        size.push_back(random.chance(4)
                           ? 0
                           : random.between(1, static_cast<std::uint32_t>(layout.max_body_bytes)));
        ASSERT_FALSE(joined.links[1]->complete(sent)) << sent;
        ASSERT_TRUE(
            joined.pump_until([&] { return send_round(*joined.links[0], sent, size[sent]) != 0; }));
      }
      ASSERT_TRUE(joined.pump_until([&] { return joined.links[1]->complete(read); })) << read;
      EXPECT_EQ(joined.links[1]->arrived(read).lines, PairLink::all_lines);
      expect_round(*joined.links[1], read, size[read]);
      // The reply of the round comes back by the same number.
      ASSERT_TRUE(joined.pump_until(
          [&] { return send_round(*joined.links[1], read, size[read] / 2) != 0; }));
      ASSERT_TRUE(joined.pump_until([&] { return joined.links[0]->complete(read); }));
      expect_round(*joined.links[0], read, size[read] / 2);
      ASSERT_TRUE(joined.pump_until([&] { return joined.links[1]->sent(read); }));
      EXPECT_TRUE(joined.links[1]->issued(read));
    }
    ASSERT_TRUE(joined.pump_until(
        [&] { return !joined.links[0]->has_pending() && !joined.links[1]->has_pending(); }));
    EXPECT_TRUE(joined.links[0]->health() && joined.links[1]->health());
  }
}

// A message that says its own number.
ControlMessage numbered(std::uint64_t number) {
  ControlMessage message = message_of(ControlType::pieces);
  message.body[0] = number;
  message.body[3] = ~number;
  return message;
}

TEST_P(EveryLink, AFullControlRingSaysSo) {
  Joined joined = join(GetParam(), small_layout(2));
  PairLink& from = *joined.links[0];
  PairLink& to = *joined.links[1];
  for (std::uint64_t i = 0; i < control_ring; ++i) {
    ASSERT_TRUE(from.send(numbered(i))) << i;
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_FALSE(from.send(numbered(99)));
    joined.pump();
  }
  ControlMessage message;
  ASSERT_TRUE(joined.pump_until([&] { return to.take(message); }));
  EXPECT_EQ(message.body[0], 0u);
  ASSERT_TRUE(joined.pump_until([&] { return from.send(numbered(control_ring)); }));
  EXPECT_FALSE(from.send(numbered(99))) << "one taken is one free";
  for (std::uint64_t i = 1; i <= control_ring; ++i) {
    ASSERT_TRUE(joined.pump_until([&] { return to.take(message); }));
    EXPECT_EQ(message.body[0], i);
  }
  for (int i = 0; i < 20; ++i) joined.pump();
  EXPECT_FALSE(to.take(message));
}

TEST_P(EveryLink, AThousandMessagesEachWayKeepTheirOrder) {
  Joined joined = join(GetParam(), small_layout(2));
  Random random{1};
  std::uint64_t sent[2] = {};
  std::uint64_t taken[2] = {};
  for (int step = 0; step < 200'000 && (taken[0] < 1000 || taken[1] < 1000); ++step) {
    const std::uint32_t end = random.below(2);
    ControlMessage message;
    switch (random.below(3)) {
      case 0:
        if (sent[end] < 1000 && joined.links[end]->send(numbered(sent[end]))) ++sent[end];
        break;
      case 1:
        if (!joined.links[end]->take(message)) break;
        ASSERT_EQ(message.body[0], taken[end]);
        ASSERT_EQ(message.body[3], ~taken[end]++);
        break;
      default:
        joined.workers[end]->pump();
    }
  }
  EXPECT_EQ(taken[0], 1000u);
  EXPECT_EQ(taken[1], 1000u);
}

TEST_P(EveryLink, MessagesAndRoundsDoNotDisturbEachOther) {
  Joined joined = join(GetParam(), small_layout(2));
  std::uint64_t next_message = 0;
  ControlMessage message;
  for (std::uint64_t round = 0; round < 100; ++round) {
    ASSERT_TRUE(joined.pump_until([&] { return send_round(*joined.links[0], round, 100) != 0; }));
    ASSERT_TRUE(joined.pump_until([&] { return joined.links[0]->send(numbered(round)); }));
    ASSERT_TRUE(joined.pump_until([&] { return joined.links[1]->complete(round); }));
    expect_round(*joined.links[1], round, 100);
    while (joined.links[1]->take(message)) ASSERT_EQ(message.body[0], next_message++);
  }
}

INSTANTIATE_TEST_SUITE_P(Links, EveryLink,
                         ::testing::Values("mapped", "counted", "reorder", "faulty"),
                         [](const auto& kind) { return std::string{kind.param}; });

TEST(MappedLink, BodiesMoveOnThroughTheSlotAndStayInIt) {
  const WindowLayout layout = small_layout(2);
  Joined joined = join("mapped", layout);
  Random random{9};
  std::vector<std::size_t> last(2, 0);
  std::size_t returns = 0;
  for (std::uint64_t round = 0; round < 20'000; ++round) {
    const std::size_t bytes = round == 7 ? layout.max_body_bytes : random.between(64, 2048);
    const std::size_t offset = joined.links[0]->place(round, bytes);
    ASSERT_EQ(offset % 64, 0u);
    ASSERT_GE(offset, sizeof(SlotHeader));
    ASSERT_LE(offset + bytes, layout.slot_bytes);
    std::size_t& before = last[round % 2];
    if (offset < before) ++returns;
    if (before != 0) {
      ASSERT_TRUE(offset > before || offset == sizeof(SlotHeader));
    }
    before = offset;
  }
  // 20000 x about 1 KiB through 2 x 2 MiB: each line comes back after some MiB, not earlier.
  EXPECT_GE(returns, 6u);
  EXPECT_LE(returns, 14u);
}

TEST(MappedLink, RowsMayBeReadBeforeTheRoundIsComplete) {
  const WindowLayout layout = small_layout(2);
  Joined joined = join("mapped", layout);
  PairLink& from = *joined.links[0];
  const PairLink& to = *joined.links[1];
  for (std::uint64_t round = 0; round < 9; ++round) {
    EXPECT_FALSE(to.arrived(round).header) << "what an older round left behind counts for nothing";
    ASSERT_NE(from.begin(round), nullptr);
    from.tell(round, 1);
    EXPECT_EQ(to.arrived(round).lines, 1u);
    from.tell(round, 5);
    EXPECT_EQ(to.arrived(round).lines, 5u);
    EXPECT_FALSE(to.complete(round));
    if (round + 2 < 9) {
      EXPECT_FALSE(to.arrived(round + 2).header);
    }
    from.finish(round, 0);
    EXPECT_EQ(to.arrived(round).lines, PairLink::all_lines);
  }
}

TEST(MappedLink, AControlWordThatIsTooFarAheadBreaksThePair) {
  Joined joined = join("mapped", small_layout(2));
  PairLink& victim = *joined.links[1];
  auto& block = *reinterpret_cast<ControlBlock*>(victim.slot(0) - victim.in().slot_offset(0));
  for (ControlSlot& slot : block.slots) slot.word = ~std::uint64_t{0};
  ControlMessage message;
  EXPECT_FALSE(victim.take(message));
  EXPECT_EQ(victim.health().code(), Code::peer_failed);
  EXPECT_NE(victim.health().text().find("broke the protocol"), std::string::npos);
}

TEST(MappedLink, APieceWakesAReaderThatSleeps) {
  Joined joined = join("mapped", small_layout(2));
  transport::Doorbell& bell = joined.workers[1]->transport().doorbell();
  ASSERT_NE(joined.links[0]->begin(0), nullptr);
  const std::uint32_t before = bell.word;
  joined.links[0]->tell(0, 1);
  EXPECT_EQ(bell.word, before) << "nobody sleeps";
  ++bell.sleepers;
  joined.links[0]->tell(0, 2);
  --bell.sleepers;
  EXPECT_NE(bell.word, before);
}

TEST(MappedLink, GatheredIsToldPerRound) {
  Joined joined = join("mapped", small_layout(2));
  for (std::uint64_t round = 0; round < 9; ++round) {
    EXPECT_FALSE(joined.links[0]->gathered(round));
    joined.links[1]->say_gathered(round);
    EXPECT_TRUE(joined.links[0]->gathered(round));
    EXPECT_FALSE(joined.links[0]->complete(round)) << "this is not a reply";
  }
}

TEST(UnmappedLink, TheStagingOfARoundIsKeptUntilItWasRead) {
  const WindowLayout layout = small_layout(1);
  Joined joined = join("reorder", layout);
  PairLink& from = *joined.links[0];
  ASSERT_NE(send_round(from, 0, 64), 0u);
  EXPECT_FALSE(from.sent(0)) << "it is held";
  EXPECT_TRUE(from.issued(0));
  ASSERT_TRUE(joined.pump_until([&] { return from.sent(0); }));
  EXPECT_TRUE(joined.links[1]->complete(0));
  from.tell(1, 1);
  EXPECT_FALSE(joined.links[1]->arrived(1).header) << "no early rows without mapped memory";
}

TEST(UnmappedLink, AFailedPutFailsThePair) {
  for (const bool later : {false, true}) {
    Joined joined = join("counted", small_layout(2));
    auto faults = std::make_shared<Faults>();
    (later ? faults->put_break_at : faults->put_fail_at) = 1;
    // The same pair again, with an end that fails its second put.
    joined.links[0].reset();
    auto inner = transport::open_transport("inproc", {"pair-link", 2, 0});
    ASSERT_TRUE(bool(inner));
    Worker worker{std::make_unique<FaultyTransport>(std::move(*inner), faults), 2, 0};
    const WindowLayout layout = small_layout(2);
    auto link = PairLink::create(worker, {layout, layout, 1, false});
    auto other = PairLink::create(*joined.workers[1], {layout, layout, 2, false});
    ASSERT_TRUE(link && other);
    const auto peer = worker.connect(1, 0, joined.workers[1]->transport().address());
    ASSERT_TRUE(bool(peer));
    ASSERT_TRUE(bool((*link)->attach(*peer, *(*other)->export_window())));
    ASSERT_NE(send_round(**link, 0, 64), 0u);
    EXPECT_TRUE(bool((*link)->health()));
    send_round(**link, 1, 64);
    for (int i = 0; i < 5; ++i) worker.pump();
    EXPECT_EQ((*link)->health().code(), Code::system);
    EXPECT_TRUE((*other)->complete(0));
    EXPECT_FALSE((*other)->complete(1));
  }
}

}  // namespace
}  // namespace m2n::testing
