// Counts what operator new hands out to the calling thread. A program that links allocations.cpp
// has the counting operators.
#pragma once

#include <cstdint>

namespace m2n::testing {

std::uint64_t allocations() noexcept;

}  // namespace m2n::testing
