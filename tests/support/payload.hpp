// The payload of every test: a row says whose it is. Values are exact in bf16 and f16.
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "m2n/m2n.hpp"
#include "tests/support/reference.hpp"

namespace m2n::testing {

inline float payload_value(std::uint32_t rank, std::uint32_t token, std::uint32_t column,
                           std::uint32_t step) {
  switch (column) {
    case 0:
      return static_cast<float>(rank);
    case 1:
      return static_cast<float>(token % 256);
    case 2:
      return static_cast<float>(token / 256);
    case 3:
      return static_cast<float>(step % 256);
    default:
      return static_cast<float>((7 * rank + 13 * token + 3 * column + step) % 17) - 8.0f;
  }
}

// One element; fp8 and i8 are arbitrary bytes, and mean their value as a signed byte.
inline void put_element(float value, DataType type, std::byte* to) {
  if (size_of(type) == 1) {
    *to = static_cast<std::byte>(static_cast<int>(value) & 0xFF);
  } else {
    reference::from_float(value, type, to);
  }
}

inline float get_element(const std::byte* from, DataType type) {
  if (size_of(type) == 1) return static_cast<float>(std::to_integer<std::int8_t>(*from));
  return reference::to_float(from, type);
}

inline std::vector<std::byte> payload_rows(const ChannelConfig& config, std::uint32_t rank,
                                           std::uint32_t tokens, std::uint32_t step) {
  const std::size_t size = size_of(config.payload);
  std::vector<std::byte> rows(std::size_t{tokens} * config.hidden * size);
  std::byte* to = rows.data();
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::uint32_t h = 0; h < config.hidden; ++h, to += size) {
      put_element(payload_value(rank, t, h, step), config.payload, to);
    }
  }
  return rows;
}

// y = x * (1 + e % 4 + 4 * part), rounded once to the wire type.
inline reference::Expert scaling_expert(const ChannelConfig& config) {
  const DataType payload = config.payload;
  const DataType wire = config.wire;
  const std::uint32_t hidden = config.hidden;
  return [=](const std::byte* x, std::uint32_t e, std::uint32_t part, std::byte* y) {
    const auto factor = static_cast<float>(1 + e % 4 + 4 * part);
    for (std::uint32_t h = 0; h < hidden; ++h) {
      const float value = get_element(x + h * size_of(payload), payload) * factor;
      reference::from_float(value, wire, y + h * size_of(wire));
    }
  };
}

// A small generator with the same numbers everywhere (xorshift-multiply on a counter).
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_{seed * 0x9E37'79B9'7F4A'7C15u + 1} {}
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9E37'79B9'7F4A'7C15u);
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9u;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBu;
    return z ^ (z >> 31);
  }
  // 0..below-1
  std::uint32_t below(std::uint32_t limit) noexcept {
    return static_cast<std::uint32_t>(next() % limit);
  }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) noexcept {
    return low + below(high - low + 1);
  }
  bool chance(std::uint32_t one_in) noexcept { return below(one_in) == 0; }
  template <class T, std::size_t n>
  T pick(const T (&values)[n]) noexcept {
    return values[below(n)];
  }

 private:
  std::uint64_t state_;
};

// Payload of section 0, distinct random experts per token, weights 1, 1/2, 1/4, ... in k order.
inline reference::Inputs standard_inputs(const ChannelConfig& config, std::uint32_t rank,
                                         std::uint32_t tokens, std::uint32_t step) {
  reference::Inputs inputs;
  inputs.tokens = tokens;
  inputs.micro_batch = step;
  inputs.layer = step % 7;
  inputs.x = payload_rows(config, rank, tokens, step);
  for (std::size_t i = 0; i < config.extra_row_bytes.size(); ++i) {
    std::vector<std::byte>& rows = inputs.extra.emplace_back();
    for (std::size_t b = 0; b < std::size_t{tokens} * config.extra_row_bytes[i]; ++b) {
      rows.push_back(static_cast<std::byte>((b * 29 + rank * 7 + step + i) & 0xFF));
    }
  }
  Random random{(std::uint64_t{step} << 20) + rank};
  std::vector<std::int64_t> deck(config.experts);
  for (std::uint32_t e = 0; e < config.experts; ++e) deck[e] = e;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    float weight = 1.0f;
    for (std::uint32_t k = 0; k < config.top_k; ++k) {
      std::swap(deck[k], deck[random.between(k, config.experts - 1)]);
      inputs.ids.push_back(deck[k]);
      inputs.weights.push_back(weight);
      weight = weight > 1e-3f ? weight / 2 : 1.0f;
    }
  }
  return inputs;
}

}  // namespace m2n::testing
