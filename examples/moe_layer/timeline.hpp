// Where the time of a rank went: spans of one clock that all ranks of a host share.
// A rank's recorder is written by that rank alone; others read it when the rank has ended.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace moe {

enum class Work : std::uint32_t { attention, gate, dispatch, combine, receive, experts, reply };
inline constexpr std::uint32_t work_kinds = 7;

constexpr const char* name(Work work) noexcept {
  constexpr std::array<const char*, work_kinds> names{"attention", "gate",    "dispatch", "combine",
                                                      "receive",   "experts", "reply"};
  return names[static_cast<std::uint32_t>(work)];
}

// One interval of one rank, in nanoseconds of the monotonic clock.
struct Span {
  Work work = Work::attention;
  std::uint32_t layer = 0;
  std::uint32_t micro_batch = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

std::int64_t now_ns() noexcept;

// Fills room that somebody else owns (for processes: shared memory). Spans without room are
// dropped.
class Recorder {
 public:
  Recorder(std::span<Span> room, std::uint32_t& count) : room_{room}, count_{count} {}
  void add(Work work, std::uint32_t layer, std::uint32_t micro_batch, std::int64_t begin_ns) {
    if (count_ < room_.size()) room_[count_++] = {work, layer, micro_batch, begin_ns, now_ns()};
  }

 private:
  std::span<Span> room_;
  std::uint32_t& count_;
};

// One rank's part of the timeline.
struct RankTimeline {
  std::string name;  // "attention 0"
  std::span<const Span> spans;
};

// Chrome trace format (JSON), for Perfetto or chrome://tracing: one process per rank, one slice per
// span. False if the file cannot be written.
bool write_trace(const std::string& path, std::span<const RankTimeline> ranks);

}  // namespace moe
