// The small state machines of a channel end: the ledger of credits and the ring of arena blocks on
// random walks against plain models; what a worker remembers of its waits. Pure, one thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "collectives/arena_ring.hpp"
#include "collectives/ledger.hpp"
#include "collectives/spin_record.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using collectives::ArenaRing;
using collectives::Ledger;
using collectives::SpinRecord;

TEST(Ledger, CombineOneBeforeCombineZeroFreesNothing) {
  Ledger ledger{2};
  EXPECT_EQ(ledger.issue(), 0u);
  EXPECT_EQ(ledger.issue(), 1u);
  EXPECT_FALSE(ledger.has_credit());
  ledger.finish(1);
  EXPECT_FALSE(ledger.has_credit());
  EXPECT_EQ(ledger.consumed(), 0u);
  ledger.finish(0);
  EXPECT_TRUE(ledger.has_credit());
  EXPECT_EQ(ledger.consumed(), 2u);
}

TEST(Ledger, RandomWalkEqualsASet) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random{seed};
    const std::uint32_t depth = random.between(1, seed % 5 == 0 ? Ledger::max_depth : 16);
    const std::uint64_t first = random.chance(2) ? 0 : random.next() >> 1;
    Ledger ledger{depth, first};
    std::set<std::uint64_t> open;  // issued, not finished
    std::uint64_t next = first;
    for (int step = 0; step < 2000; ++step) {
      // Slot r mod depth is free when no round that may still be read, or comes before one, has it.
      const std::uint64_t oldest = open.empty() ? next : *open.begin();
      ASSERT_EQ(ledger.consumed(), oldest);
      ASSERT_EQ(ledger.issued(), next);
      ASSERT_EQ(ledger.next(), next);
      ASSERT_EQ(ledger.has_credit(), next - oldest < depth);
      if (ledger.has_credit() && random.chance(2)) {
        ASSERT_EQ(ledger.issue(), next);
        open.insert(next++);
      } else if (!open.empty()) {
        const auto one =
            std::next(open.begin(), random.below(static_cast<std::uint32_t>(open.size())));
        ledger.finish(*one);
        open.erase(one);
      }
    }
  }
}

// Blocks in the order in which they were taken. Rows of a block stay taken until it and all older
// ones are done with.
class IntervalModel {
 public:
  IntervalModel(std::uint32_t rows, std::uint32_t max_blocks) : rows_{rows}, most_{max_blocks} {}

  struct Block {
    std::uint32_t first = 0;
    std::uint32_t rows = 0;
    std::uint32_t users = 0;
    bool used = false;
    std::uint32_t handle = 0;  // of the last use
  };

  void reclaim() {
    while (!blocks.empty() && blocks.front().used && blocks.front().users == 0) blocks.pop_front();
  }
  bool overlaps(std::uint32_t first, std::uint32_t rows) const {
    return std::any_of(blocks.begin(), blocks.end(), [&](const Block& block) {
      return first < block.first + block.rows && block.first < first + rows;
    });
  }
  // Where the next block goes if there is room, or ArenaRing::none.
  std::uint32_t acquire(std::uint32_t rows) {
    reclaim();
    if (rows > rows_ || blocks.size() == most_) return ArenaRing::none;
    const std::uint32_t first = head_ + rows <= rows_ ? head_ : 0;
    if (overlaps(first, rows)) return ArenaRing::none;
    blocks.push_back({first, rows, 0, false, 0});
    head_ = (first + rows) % rows_;
    return first;
  }

  std::deque<Block> blocks;

 private:
  std::uint32_t rows_;
  std::uint32_t most_;
  std::uint32_t head_ = 0;
};

void use_one(ArenaRing& ring, IntervalModel& model, Random& random) {
  if (model.blocks.empty()) return;
  auto& block = model.blocks[random.below(static_cast<std::uint32_t>(model.blocks.size()))];
  if (block.used && block.users == 0) return;  // done with, and perhaps gone
  const std::uint32_t skip = random.below(block.rows);
  const std::uint32_t rows = random.between(1, block.rows - skip);
  const std::uint32_t handle = ring.use(block.first + skip, rows);
  ASSERT_NE(handle, ArenaRing::none);
  if (block.users > 0) {
    EXPECT_EQ(handle, block.handle);
  }
  for (const IntervalModel::Block& other : model.blocks) {
    if (&other != &block && other.users > 0) {
      EXPECT_NE(handle, other.handle);
    }
  }
  block.handle = handle;
  block.used = true;
  ++block.users;
  // Rows that stick out of the block are not of one block.
  EXPECT_EQ(ring.use(block.first + skip, block.rows - skip + 1), ArenaRing::none);
}

TEST(ArenaRing, RandomWalkEqualsIntervals) {
  for (std::uint64_t seed = 0; seed < 300 && !::testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Random random{seed};
    const std::uint32_t rows = random.between(1, 64);
    const std::uint32_t blocks = random.between(1, 8);
    ArenaRing ring{rows, blocks};
    IntervalModel model{rows, blocks};
    for (int step = 0; step < 1000; ++step) {
      switch (random.below(3)) {
        case 0: {
          const std::uint32_t count = random.between(1, random.chance(9) ? rows + 1 : rows / 3 + 1);
          ASSERT_EQ(ring.acquire(count), model.acquire(count));
          break;
        }
        case 1:
          use_one(ring, model, random);
          break;
        default:
          if (model.blocks.empty()) break;
          auto& block = model.blocks[random.below(static_cast<std::uint32_t>(model.blocks.size()))];
          if (block.users == 0) break;
          ring.release(block.handle);
          --block.users;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(ArenaRing, AnEmptyRingHasRoomForEverything) {
  ArenaRing ring{10, 4};
  for (std::uint32_t i = 0; i < 50; ++i) {
    const std::uint32_t rows = 1 + i * 7 % 10;
    const std::uint32_t first = ring.acquire(rows);
    ASSERT_NE(first, ArenaRing::none) << i;
    EXPECT_LE(first + rows, 10u);
    ring.release(ring.use(first, rows));
  }
  EXPECT_EQ(ring.acquire(11), ArenaRing::none);
}

TEST(ArenaRing, ABlockThatNobodyUsedYetIsKept) {
  ArenaRing ring{4, 4};
  ASSERT_EQ(ring.acquire(4), 0u);
  EXPECT_EQ(ring.acquire(1), ArenaRing::none);
  const std::uint32_t block = ring.use(0, 4);
  EXPECT_EQ(ring.acquire(1), ArenaRing::none);
  ring.release(block);
  EXPECT_EQ(ring.acquire(1), 0u);
}

TEST(ArenaRing, UnknownRowsHaveNoBlock) {
  ArenaRing ring{8, 4};
  EXPECT_EQ(ring.use(0, 1), ArenaRing::none);
  ASSERT_EQ(ring.acquire(3), 0u);
  ASSERT_EQ(ring.acquire(3), 3u);
  EXPECT_EQ(ring.use(6, 1), ArenaRing::none);
  EXPECT_EQ(ring.use(2, 2), ArenaRing::none);
  EXPECT_NE(ring.use(3, 3), ArenaRing::none);
}

TEST(SpinRecord, GivesUpWhatIsVainAndTriesAgain) {
  SpinRecord record;
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(record.pays());
    record.ended(false);
  }
  int spins = 0;
  for (int i = 0; i < 160; ++i) {
    if (!record.pays()) continue;
    ++spins;
    record.ended(false);
  }
  EXPECT_EQ(spins, 10);
  while (!record.pays()) continue;
  record.ended(true);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(record.pays());
}

}  // namespace
}  // namespace m2n::testing
