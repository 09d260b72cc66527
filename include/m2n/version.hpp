// Versions of the library and of what it puts on the wire.
#pragma once

#define M2N_VERSION_MAJOR 0
#define M2N_VERSION_MINOR 1
#define M2N_VERSION_PATCH 0

#include "m2n/export.hpp"

namespace m2n {
inline constexpr unsigned wire_version = 1;
// "0.1.0", of the library that is loaded.
M2N_EXPORT const char* version() noexcept;
}  // namespace m2n
