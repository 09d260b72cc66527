#include "transport/store_tcp_frame.hpp"

#include <algorithm>
#include <cstring>

#include "transport/store_common.hpp"

namespace m2n::transport {
namespace {

struct FrameRule {
  FrameType type;
  FrameSource source;
  bool has_key;
  std::size_t min_value_bytes;
  std::size_t max_value_bytes;
};

using enum FrameType;
constexpr std::array frame_rules{
    FrameRule{hello, FrameSource::stranger, false, 33, 33},
    FrameRule{proof, FrameSource::stranger, false, 32, 32},
    FrameRule{set, FrameSource::client, true, 0, max_value_bytes},
    FrameRule{get, FrameSource::client, true, 0, 0},
    FrameRule{FrameType::wait, FrameSource::client, true, 0, 0},
    FrameRule{add, FrameSource::client, true, 8, 8},
    FrameRule{challenge, FrameSource::unproven_server, false, 33, 33},
    FrameRule{welcome, FrameSource::unproven_server, false, 0, 32},
    FrameRule{failure, FrameSource::unproven_server, false, 1, max_failure_bytes},
    FrameRule{done, FrameSource::server, false, 0, 0},
    FrameRule{value, FrameSource::server, false, 0, max_value_bytes},
    FrameRule{again, FrameSource::server, false, 0, 0},
    FrameRule{sum, FrameSource::server, false, 8, 8},
    FrameRule{failure, FrameSource::server, false, 1, max_failure_bytes},
};

ParsedFrame bad(const char* reason) noexcept {
  ParsedFrame parsed;
  parsed.state = ParsedFrame::State::bad;
  parsed.reason = reason;
  return parsed;
}

const FrameRule* rule_of(FrameType type, FrameSource source) noexcept {
  const auto* found = std::find_if(
      frame_rules.begin(), frame_rules.end(),
      [&](const FrameRule& rule) { return rule.type == type && rule.source == source; });
  return found == frame_rules.end() ? nullptr : found;
}

}  // namespace

ParsedFrame parse_frame(std::span<const std::byte> bytes, FrameSource source) noexcept {
  if (bytes.empty()) return ParsedFrame{ParsedFrame::State::incomplete, {}, frame_header_bytes, ""};
  // What is wrong in the first bytes is wrong already: a stranger need not send a whole header.
  if (std::memcmp(bytes.data(), frame_magic.data(), std::min(bytes.size(), frame_magic.size())) !=
      0) {
    return bad("wrong magic");
  }
  ParsedFrame parsed;
  parsed.needed = frame_header_bytes;
  if (bytes.size() >= 5 && load_le(&bytes[4], 1) != frame_version) return bad("wrong version");
  if (bytes.size() < frame_header_bytes) return parsed;

  const auto type = static_cast<FrameType>(load_le(&bytes[5], 1));
  const std::size_t key_bytes = load_le(&bytes[6], 2);
  const std::size_t value_bytes = load_le(&bytes[8], 4);
  const FrameRule* rule = rule_of(type, source);
  if (rule == nullptr) return bad("unexpected frame type");
  if (load_le(&bytes[12], 4) != 0) return bad("reserved bytes are not zero");
  if (rule->has_key ? key_bytes < 1 || key_bytes > max_key_bytes : key_bytes != 0) {
    return bad("wrong key length");
  }
  if (value_bytes < rule->min_value_bytes || value_bytes > rule->max_value_bytes) {
    return bad("wrong value length");
  }
  parsed.needed = frame_header_bytes + key_bytes + value_bytes;
  if (bytes.size() < parsed.needed) return parsed;

  const auto* key = reinterpret_cast<const char*>(bytes.data() + frame_header_bytes);
  parsed.frame.type = type;
  parsed.frame.key = {key, key_bytes};
  parsed.frame.value = bytes.subspan(frame_header_bytes + key_bytes, value_bytes);
  parsed.frame.bytes = parsed.needed;
  if (parsed.frame.key.find('\0') != std::string_view::npos) return bad("zero byte in a key");
  parsed.state = ParsedFrame::State::complete;
  return parsed;
}

void append_frame(Bytes& to, FrameType type, std::string_view key,
                  std::span<const std::byte> content) {
  std::array<std::byte, frame_header_bytes> header{};
  std::memcpy(header.data(), frame_magic.data(), frame_magic.size());
  header[4] = std::byte{frame_version};
  header[5] = static_cast<std::byte>(type);
  store_le(&header[6], key.size(), 2);
  store_le(&header[8], content.size(), 4);
  to.reserve(to.size() + header.size() + key.size() + content.size());
  to.insert(to.end(), header.begin(), header.end());
  const auto key_bytes = std::as_bytes(std::span{key.data(), key.size()});
  to.insert(to.end(), key_bytes.begin(), key_bytes.end());
  to.insert(to.end(), content.begin(), content.end());
}

Result<Digest> store_proof(std::string_view job_key, std::string_view role, const Nonce& client,
                           const Nonce& server) {
  const std::string label = "m2n store " + std::to_string(frame_version) + " " + std::string{role};
  const auto label_bytes = std::as_bytes(std::span{label.data(), label.size()});
  Bytes message{label_bytes.begin(), label_bytes.end()};
  message.insert(message.end(), client.begin(), client.end());
  message.insert(message.end(), server.begin(), server.end());
  return hmac_sha256(job_key, message);
}

std::array<std::byte, 33> encode_hello(const Hello& hello_value) {
  std::array<std::byte, 33> bytes{};
  std::copy(hello_value.nonce.begin(), hello_value.nonce.end(), bytes.begin());
  bytes[32] = std::byte{hello_value.has_key};
  return bytes;
}

Hello decode_hello(std::span<const std::byte> bytes) {
  Hello decoded;
  std::copy_n(bytes.begin(), decoded.nonce.size(), decoded.nonce.begin());
  decoded.has_key = bytes[32] != std::byte{0};
  return decoded;
}

}  // namespace m2n::transport
