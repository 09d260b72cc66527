// Starts the ranks and waits for them: processes for shm, threads for inproc. Main thread.
#pragma once

#include <string>

#include "options.hpp"
#include "report.hpp"

namespace moe {

// Runs every rank to its end. "" or what kept them from running; what failed inside a rank is in
// its report.
std::string run_ranks(const Options& options, Reports& reports);

}  // namespace moe
