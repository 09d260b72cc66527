// The clock and the trace file.
#include "timeline.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace moe {

std::int64_t now_ns() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

bool write_trace(const std::string& path, std::span<const RankTimeline> ranks) {
  std::int64_t origin_ns = std::numeric_limits<std::int64_t>::max();
  for (const RankTimeline& rank : ranks) {
    for (const Span& span : rank.spans) origin_ns = std::min(origin_ns, span.begin_ns);
  }
  const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1000.0; };

  nlohmann::json events = nlohmann::json::array();
  for (std::size_t pid = 0; pid < ranks.size(); ++pid) {
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", pid},
                      {"tid", 0},
                      {"args", {{"name", ranks[pid].name}}}});
    for (const Span& span : ranks[pid].spans) {
      events.push_back({{"ph", "X"},
                        {"name", name(span.work)},
                        {"pid", pid},
                        {"tid", 0},
                        {"ts", microseconds(span.begin_ns - origin_ns)},
                        {"dur", microseconds(span.end_ns - span.begin_ns)},
                        {"args", {{"layer", span.layer}, {"micro_batch", span.micro_batch}}}});
    }
  }
  const nlohmann::json document = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  std::ofstream file{path};
  file << document.dump() << '\n';
  file.close();
  return !file.fail();
}

}  // namespace moe
