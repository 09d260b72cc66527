// Where the library's few lines of text go. Nothing is logged on success at the default level.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace m2n {

enum class LogLevel : std::uint8_t { error, warn, info, debug };

// Called with the level, the world rank (-1 before it is known) and one line without newline.
// Any thread that is inside an m2n call may call it.
using LogCallback = std::function<void(LogLevel, std::int32_t rank, std::string_view text)>;

}  // namespace m2n
