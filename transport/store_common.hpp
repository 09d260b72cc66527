// What all stores check and compute alike: sizes of keys and values, deadlines, counters.
// Stateless; callable from any thread.
#pragma once

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "m2n/status.hpp"
#include "m2n/store.hpp"
#include "transport/text.hpp"

namespace m2n::transport {

inline constexpr std::size_t max_key_bytes = 512;
inline constexpr std::size_t max_value_bytes = std::size_t{16} << 20;

using Clock = std::chrono::steady_clock;

// A far deadline instead of an overflow, so that "for ever" may be asked for by any large value.
inline Clock::time_point deadline_after(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds far = std::chrono::hours{24 * 365 * 10};
  return Clock::now() + (timeout > far ? far : timeout);
}

inline Status check_key(std::string_view function, std::string_view key) {
  if (key.empty() || key.size() > max_key_bytes) {
    return refuse({function, "key length", std::to_string(key.size()),
                   "1.." + std::to_string(max_key_bytes) + " bytes", -1, "Store"});
  }
  if (key.find('\0') != std::string_view::npos) {
    return refuse({function, "key", "a text with a zero byte", "UTF-8 without it", -1, "Store"});
  }
  return {};
}

inline Status check_value(std::string_view key, std::size_t bytes) {
  if (bytes <= max_value_bytes) return {};
  return refuse({"set", "value of key \"" + std::string{key} + "\"",
                 std::to_string(bytes) + " bytes", "0.." + std::to_string(max_value_bytes), -1,
                 "Store"});
}

inline std::uint64_t load_le(const std::byte* from, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(from[i]) << 8 * i;
  return value;
}

inline void store_le(std::byte* to, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(value >> 8 * i);
}

// The counter after `delta`; `invalid` if the key holds something else than a counter.
inline Result<std::int64_t> add_to(std::string_view key, const Bytes* old, std::int64_t delta) {
  std::int64_t sum = 0;
  if (old != nullptr) {
    if (old->size() != 8) {
      return refuse({"add", "value of key \"" + std::string{key} + "\"",
                     std::to_string(old->size()) + " bytes", "a counter of 8 bytes", -1, "Store"});
    }
    sum = std::bit_cast<std::int64_t>(load_le(old->data(), 8));
  }
  if (__builtin_add_overflow(sum, delta, &sum)) {
    return refuse({"add", "delta for key \"" + std::string{key} + "\"", std::to_string(delta),
                   "what keeps the sum within 64 bits", -1, "Store"});
  }
  return sum;
}

inline Bytes counter_bytes(std::int64_t value) {
  Bytes bytes(8);
  store_le(bytes.data(), std::bit_cast<std::uint64_t>(value), 8);
  return bytes;
}

inline Status wait_timeout(std::string_view key, std::chrono::nanoseconds timeout,
                           std::string_view where) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return {Code::timeout, Scope::operation,
          "wait: key \"" + std::string{key} + "\" is not in the store " + std::string{where} +
              " after " + std::to_string(ms) +
              " ms; is the rank that sets it running? (see M2N_START_TIMEOUT_MS)"};
}

}  // namespace m2n::transport
