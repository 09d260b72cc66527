// The few cryptographic pieces that the bootstrap needs, all from libcrypto or the kernel.
// Stateless; callable from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "m2n/status.hpp"

namespace m2n::transport {

using Digest = std::array<std::byte, 32>;

Result<Digest> hmac_sha256(std::string_view key, std::span<const std::byte> message);
Result<Digest> sha256(std::string_view text);
// Takes the same time wherever the two differ.
bool equal_digests(const Digest& a, std::span<const std::byte> b) noexcept;
// Unpredictable bytes; `system` if the kernel has none.
Status fill_random(std::span<std::byte> bytes);
std::string hex(std::span<const std::byte> bytes);

}  // namespace m2n::transport
