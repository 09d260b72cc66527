// Tells a process from the children it forks, without a system call: windows are shared with a
// child, but only the process that registered them may write to its peers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "m2n/status.hpp"

namespace m2n::collectives {

// Forks that lie between this process and the first one that loaded the library.
inline std::atomic<std::uint64_t> fork_count{0};

// Counts from now on, and returns what stands there. Any thread.
std::uint64_t watch_forks() noexcept;

// The refusal of a verb whose handle was made before the fork.
Status used_in_child(std::string_view function, std::int32_t rank);

}  // namespace m2n::collectives
