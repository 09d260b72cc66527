// Error texts of one shape: function, argument, actual, allowed, rank, and the setting to change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "m2n/status.hpp"

namespace m2n::transport {

struct Refusal {
  std::string_view function;  // "dispatch"
  std::string_view argument;  // "tokens"
  std::string actual;         // "300"
  std::string allowed;        // "0..256"
  std::int32_t rank = -1;     // world rank
  std::string_view setting;   // "ChannelConfig::max_tokens"
};

inline std::string text_of(const Refusal& refusal) {
  std::string text;
  text.append(refusal.function)
      .append(": ")
      .append(refusal.argument)
      .append(" = ")
      .append(refusal.actual);
  text.append(", allowed: ").append(refusal.allowed);
  text.append(" (rank ").append(std::to_string(refusal.rank)).append("; see ");
  return text.append(refusal.setting).append(")");
}

inline Status refuse(const Refusal& refusal, Code code = Code::invalid) {
  return {code, Scope::operation, text_of(refusal)};
}

}  // namespace m2n::transport
