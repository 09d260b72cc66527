// --placement file:PATH: a map of experts to ranks as JSON (docs/perf.md). Used before ranks start.
#pragma once

#include <cstdint>
#include <string>

#include "m2n/placement.hpp"
#include "m2n/status.hpp"

namespace m2n::perf {

// {"experts": [ EXPERT, ... ]}; EXPERT = a rank (its local index is the next free one there), or a
// list of parts, each a list of [rank, local expert] replicas. `invalid` says where it is wrong.
Result<Placement> parse_placement(const std::string& json, std::uint32_t expert_ranks);

// Words of --placement: "block" or "file:PATH".
Result<Placement> read_placement(const std::string& text, std::uint32_t experts,
                                 std::uint32_t expert_ranks);

}  // namespace m2n::perf
