// The bytes that the TCP store and its clients exchange, as pure functions: nothing here trusts
// what it reads or touches a socket. Callable from any thread.
//
// A frame is a header of 16 bytes, little endian, then the key, then the value:
//   0 magic "M2NS" | 4 version | 5 type | 6 key bytes (16 bits) | 8 value bytes (32 bits) | 12 zero
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "m2n/store.hpp"
#include "transport/hmac.hpp"

namespace m2n::transport {

inline constexpr std::array<char, 4> frame_magic{'M', '2', 'N', 'S'};
inline constexpr std::uint8_t frame_version = 1;
inline constexpr std::size_t frame_header_bytes = 16;
inline constexpr std::size_t max_failure_bytes = 2048;

using Nonce = std::array<std::byte, 32>;

enum class FrameType : std::uint8_t {
  // from clients
  hello = 1,  // value: nonce, then 1 if this side has a job key, else 0
  proof = 2,  // value: HMAC of the client
  set = 3,
  get = 4,
  wait = 5,
  add = 6,  // value: 8 bytes
  // from the server
  challenge = 65,  // value: as hello
  welcome = 66,    // value: HMAC of the server, or nothing without a job key
  done = 67,
  value = 68,
  again = 69,
  sum = 70,      // value: 8 bytes
  failure = 71,  // value: the code in one byte, then text
};

// Whose frames are read, and before or after the handshake. Strangers may send little.
enum class FrameSource : std::uint8_t { stranger, client, unproven_server, server };

struct Frame {
  FrameType type{};
  std::string_view key;
  std::span<const std::byte> value;
  std::size_t bytes = 0;  // of the whole frame
};

struct ParsedFrame {
  enum class State : std::uint8_t { incomplete, complete, bad } state = State::incomplete;
  Frame frame;              // complete: points into what was parsed
  std::size_t needed = 0;   // incomplete: bytes of the frame as far as they are known
  const char* reason = "";  // bad: why
};

// Looks at the frame at the start of `bytes`.
ParsedFrame parse_frame(std::span<const std::byte> bytes, FrameSource source) noexcept;

// Appends a frame. Sizes have been checked by the caller.
void append_frame(Bytes& to, FrameType type, std::string_view key,
                  std::span<const std::byte> value);

// What a side proves: HMAC over its role and both nonces, so that no proof serves as another.
Result<Digest> store_proof(std::string_view job_key, std::string_view role, const Nonce& client,
                           const Nonce& server);

// nonce and key flag of a hello or a challenge
struct Hello {
  Nonce nonce{};
  bool has_key = false;
};
std::array<std::byte, 33> encode_hello(const Hello& hello);
Hello decode_hello(std::span<const std::byte> value);  // of a parsed frame: 33 bytes

}  // namespace m2n::transport
