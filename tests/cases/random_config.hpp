// Random runs for the property test: a seed gives the same Scenario everywhere.
#pragma once

#include <cstdint>
#include <string>

#include "tests/cases/scenario.hpp"

namespace m2n::testing {

Scenario random_scenario(std::uint64_t seed);
// One line that says what a failing seed was about.
std::string describe(const Scenario& scenario);

}  // namespace m2n::testing
