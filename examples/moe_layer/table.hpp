// The table of where the time went. Main thread, after the ranks have ended.
#pragma once

#include <span>
#include <string>

#include "timeline.hpp"

namespace moe {

// One line per rank: milliseconds and share of the run in each kind of work. `attention_ranks` of
// `ranks` come first.
std::string time_table(std::span<const RankTimeline> ranks, std::size_t attention_ranks);

}  // namespace moe
