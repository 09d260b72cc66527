// Shared by the fuzzers: bytes that are nearly right reach deeper than random ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace m2n::fuzz {

// `valid` with edits taken from `data`: each 4 bytes are a position (16 bits), an operation and a
// value.
inline std::vector<std::byte> edited(std::vector<std::byte> valid,
                                     std::span<const std::uint8_t> data) {
  for (; data.size() >= 4 && !valid.empty(); data = data.subspan(4)) {
    const std::size_t at = (data[0] | std::size_t{data[1]} << 8) % valid.size();
    const auto value = static_cast<std::byte>(data[3]);
    switch (data[2] % 4) {
      case 0:
        valid[at] = value;
        break;
      case 1:
        valid[at] ^= value;
        break;
      case 2:
        valid.resize(at);
        break;
      default:
        valid.insert(valid.begin() + static_cast<std::ptrdiff_t>(at), value);
        break;
    }
  }
  return valid;
}

// The expectation of a fuzzer; a trap is what libFuzzer reports with the input that led to it.
inline void expect(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace m2n::fuzz
