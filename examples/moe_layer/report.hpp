// What the ranks hand back: one block of memory that processes and threads both can write. Each
// rank writes its own part only; main reads when all have ended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "m2n/status.hpp"
#include "numbers.hpp"
#include "options.hpp"
#include "timeline.hpp"

namespace moe {

struct RankReport {
  bool finished = false;
  std::array<char, 1024> error{};  // text of the failure, "" = none
  std::uint32_t span_count = 0;
  std::uint64_t rows = 0;           // payload rows sent
  std::uint64_t wire_bytes = 0;     // that really travelled
  std::uint64_t logical_bytes = 0;  // without de-duplication

  void fail(const char* step, const m2n::Status& status);
};

class Reports {
 public:
  // Maps the memory; test the object before use.
  explicit Reports(const Options& options);
  ~Reports();
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;
  explicit operator bool() const noexcept { return base_ != nullptr; }

  RankReport& rank(std::uint32_t world_rank) noexcept;
  std::span<Span> spans(std::uint32_t world_rank) noexcept;
  // [micro-batches, tokens, hidden] of an attention rank; those of all ranks are adjacent.
  Bf16* outputs(std::uint32_t attention_rank) noexcept;
  // Names and recorded spans, attention ranks first.
  std::vector<RankTimeline> timelines();

 private:
  Options options_;
  std::size_t spans_offset_ = 0;
  std::size_t outputs_offset_ = 0;
  std::size_t size_bytes_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace moe
