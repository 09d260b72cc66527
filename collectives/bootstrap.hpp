// What ranks tell each other before any transport is up, and what follows from it. Pure: every rank
// reads the same hellos in the same order (gathering.hpp) and so comes to the same end. Set-up
// only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "m2n/status.hpp"
#include "m2n/store.hpp"
#include "m2n/version.hpp"

namespace m2n::collectives {

// Wire versions that a rank can speak.
struct VersionRange {
  std::uint32_t min = wire_version;
  std::uint32_t max = wire_version;
  bool operator==(const VersionRange&) const = default;
};

// Tests let a world rank claim another range. Change it while no rank is inside a call.
inline std::atomic<VersionRange (*)(std::uint32_t world_rank)> test_versions{nullptr};
VersionRange versions_of(std::uint32_t world_rank) noexcept;

// What a rank says at one of the two stages of a meeting. `fields` must be equal on all ranks;
// `values` are opaque here. The shape is the same in every wire version.
struct Hello {
  enum class Kind : std::uint32_t {
    present,
    refused,  // this rank cannot go on: `text` says why, so that the others need not wait for it
    gave_up,  // this rank's deadline has passed: `text` says for whom it waited, `peer` is the
              // first
  };
  VersionRange versions;
  Kind kind = Kind::present;
  std::uint32_t world_rank = 0;
  std::uint32_t world_size = 0;
  std::uint32_t stage = 0;
  std::int32_t peer = -1;
  std::string text;
  std::vector<std::pair<std::string, std::string>> fields;
  std::vector<std::pair<std::string, Bytes>> values;

  void field(std::string name, std::string value) {
    fields.emplace_back(std::move(name), std::move(value));
  }
  void field(std::string name, std::uint64_t value) {
    field(std::move(name), std::to_string(value));
  }
  void value(std::string name, Bytes bytes) {
    values.emplace_back(std::move(name), std::move(bytes));
  }
  // The value of that name, or null.
  const Bytes* find(std::string_view name) const noexcept;
  // The same as text; empty if there is none.
  std::string find_text(std::string_view name) const;
};

Bytes bytes_of(std::string_view text);

Bytes encode(const Hello& hello);
// `invalid` for anything that encode() did not write.
Result<Hello> decode(std::span<const std::byte> bytes);

// Ranks 0..world_size-1 meet in two stages: each says who it is, and when all have, each says that
// it is ready. The meeting is over when all are ready, or as soon as one hello shows that it cannot
// succeed; what comes later changes nothing.
class Meeting {
 public:
  static constexpr std::uint32_t stages = 2;

  // The next entry of the log: what decode() made of it.
  void read(const Result<Hello>& entry);

  bool over() const noexcept { return over_; }
  // Once it is over: ok if all ranks are ready, else why not, in words that all ranks read alike.
  const Status& outcome() const noexcept { return outcome_; }
  bool complete(std::uint32_t stage) const noexcept {
    return !there_[stage].empty() && there_[stage].size() == world_size_;
  }
  // By world rank; of a complete stage.
  std::vector<Hello> hellos(std::uint32_t stage) const;
  // Who has not been there yet, in order; at most `most`.
  std::vector<std::uint32_t> missing(std::uint32_t stage, std::size_t most) const;
  std::uint32_t present(std::uint32_t stage) const noexcept {
    return static_cast<std::uint32_t>(there_[stage].size());
  }
  bool has(std::uint32_t world_rank) const { return there_[0].count(world_rank) != 0; }
  std::uint32_t world_size() const noexcept { return world_size_; }
  // The greatest that all can speak who have come.
  std::uint32_t version() const noexcept { return common_.max; }

 private:
  // A field's value, who said it first, and how many have said it.
  struct Said {
    std::string value;
    std::uint32_t world_rank = 0;
    std::uint32_t count = 0;
  };

  Status judge(const Hello& hello);
  Status agree_version(const Hello& hello);
  Status check_twice(const Hello& hello) const;
  Status compare(const Hello& hello);

  bool over_ = false;
  Status outcome_;
  std::uint32_t world_size_ = 0;
  VersionRange common_{0, ~0u};
  std::uint32_t highest_min_rank_ = 0;  // who has set common_.min
  std::uint32_t lowest_max_rank_ = 0;   // and common_.max
  std::array<std::map<std::uint32_t, Hello>, stages> there_;
  std::array<std::map<std::string, Said, std::less<>>, stages> said_;
};

// Random bytes as hex, for job and window nonces.
std::string random_hex(std::size_t bytes);

}  // namespace m2n::collectives
