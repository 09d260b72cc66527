#include "transport/hmac.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace m2n::transport {

Result<Digest> hmac_sha256(std::string_view key, std::span<const std::byte> message) {
  Digest digest{};
  unsigned int bytes = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  auto* out = reinterpret_cast<unsigned char*>(digest.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, message.size(), out,
           &bytes) == nullptr ||
      bytes != digest.size()) {
    return Status{Code::system, Scope::group, "hmac_sha256: libcrypto refused HMAC with SHA-256"};
  }
  return digest;
}

Result<Digest> sha256(std::string_view text) {
  Digest digest{};
  unsigned int bytes = 0;
  auto* out = reinterpret_cast<unsigned char*>(digest.data());
  if (EVP_Digest(text.data(), text.size(), out, &bytes, EVP_sha256(), nullptr) != 1 ||
      bytes != digest.size()) {
    return Status{Code::system, Scope::group, "sha256: libcrypto refused SHA-256"};
  }
  return digest;
}

bool equal_digests(const Digest& a, std::span<const std::byte> b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Status fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return {Code::system, Scope::group, std::string{"getrandom: "} + std::strerror(errno)};
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += digits[std::to_integer<std::size_t>(byte >> 4)];
    text += digits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace m2n::transport
