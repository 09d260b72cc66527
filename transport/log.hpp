// The library's own log lines: level, rank, text, to a callback or stderr. Used at set-up and on
// faults.
#pragma once

#include <cstdint>
#include <string_view>

#include "m2n/log.hpp"

namespace m2n::transport {

class Log {
 public:
  // An empty callback means stderr, at the level of M2N_LOG (error, warn, info, debug; default
  // warn).
  Log(LogCallback callback, std::int32_t rank);
  void operator()(LogLevel level, std::string_view text) const;

 private:
  LogCallback callback_;
  std::int32_t rank_ = -1;
  LogLevel threshold_ = LogLevel::warn;
};

}  // namespace m2n::transport
