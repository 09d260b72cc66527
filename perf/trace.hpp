// A recorded routing: which experts a real router chose for consecutive tokens. The file format is
// in docs/trace-format.md. A Trace is immutable once read; ranks share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "m2n/status.hpp"

namespace m2n::perf {

struct Trace {
  std::uint32_t layers = 0;
  std::uint32_t tokens = 0;
  std::uint32_t top_k = 0;
  std::uint32_t experts = 0;
  std::vector<std::string> kinds;
  std::vector<std::uint8_t> kind;     // [tokens]
  std::vector<std::uint16_t> expert;  // [layers][tokens][top_k]
  std::vector<float> weight;          // [layers][tokens][top_k]

  std::size_t entry(std::uint32_t layer, std::uint32_t token) const noexcept {
    return (std::size_t{layer} * tokens + token) * top_k;
  }
};

// `invalid` says what is wrong with the bytes, and where.
Result<Trace> parse_trace(std::span<const std::byte> bytes);
Result<Trace> read_trace(const std::string& path);

}  // namespace m2n::perf
