// Which rows of an arena are in use: blocks are taken in ring order and given back in any order.
// Pure state.
//
// A ring, not a pool: memory that comes back after a few MiB is cheap to write, memory that was
// used last is not (its lines are still held by the readers).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace m2n::collectives {

class ArenaRing {
 public:
  static constexpr std::uint32_t none = ~0u;

  ArenaRing(std::uint32_t rows, std::uint32_t max_blocks) : rows_{rows}, blocks_(max_blocks) {}

  // First row of a free block of so many rows (at least 1), or none.
  std::uint32_t acquire(std::uint32_t rows) noexcept {
    reclaim();
    if (rows > rows_ || newest_ - oldest_ == blocks_.size()) return none;
    std::uint64_t begin = head_;
    if (begin % rows_ + rows > rows_) begin += rows_ - begin % rows_;
    const std::uint64_t tail = newest_ == oldest_ ? begin : at(oldest_).begin;
    if (begin + rows - tail > rows_) return none;
    head_ = begin + rows;
    at(newest_++) = {begin, rows, 0, false};
    return static_cast<std::uint32_t>(begin % rows_);
  }

  // An operation begins to use the block that holds `row`; none if there is no such block.
  std::uint32_t use(std::uint32_t row, std::uint32_t rows) noexcept {
    Block* block = find(row, rows);
    if (block == nullptr) return none;
    ++block->users;
    block->used = true;
    return static_cast<std::uint32_t>(block - blocks_.data());
  }

  // Nobody will use the block that holds `row`. False if there is none, or somebody has.
  bool give_back(std::uint32_t row) noexcept {
    Block* block = find(row, 1);
    return block != nullptr && !std::exchange(block->used, true);
  }

  // The operation's readers are done with the block that use() gave.
  void release(std::uint32_t block) noexcept { --blocks_[block].users; }

 private:
  struct Block {
    std::uint64_t begin = 0;  // row, counted from the beginning of time
    std::uint32_t rows = 0;
    std::uint32_t users = 0;
    bool used = false;
  };

  Block* find(std::uint32_t row, std::uint32_t rows) noexcept {
    for (std::uint64_t i = oldest_; i < newest_; ++i) {
      Block& block = at(i);
      const auto first = static_cast<std::uint32_t>(block.begin % rows_);
      if (row >= first && row - first < block.rows && rows <= block.rows - (row - first))
        return &block;
    }
    return nullptr;
  }
  Block& at(std::uint64_t i) noexcept { return blocks_[i % blocks_.size()]; }
  void reclaim() noexcept {
    while (oldest_ < newest_ && at(oldest_).used && at(oldest_).users == 0) ++oldest_;
  }

  std::uint32_t rows_;
  std::vector<Block> blocks_;
  std::uint64_t head_ = 0;
  std::uint64_t oldest_ = 0;
  std::uint64_t newest_ = 0;
};

}  // namespace m2n::collectives
