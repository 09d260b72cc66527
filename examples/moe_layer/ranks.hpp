// The two loops that a serving system would run: one per attention rank, one per expert rank.
#pragma once

#include <cstdint>
#include <memory>

#include "m2n/store.hpp"
#include "options.hpp"
#include "report.hpp"

namespace moe {

// Joins the group as `world_rank`, runs all layers and leaves. What went wrong is in the report.
// Called once per rank, in its own process or thread.
void run_rank(const Options& options, std::uint32_t world_rank, std::shared_ptr<m2n::Store> store,
              Reports& reports);

}  // namespace moe
