// One connection of a client to the TCP store: handshake, then one request at a time. Used by one
// thread at a time; the store object keeps a pool of them, so that a wait holds up nobody else.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "transport/store_tcp_frame.hpp"
#include "transport/store_tcp_socket.hpp"

namespace m2n::transport {

struct StoreReply {
  FrameType type{};
  Bytes value;
};

class StoreConnection {
 public:
  // One try to connect and to prove the job key. `again`: the server is not there yet; the text
  // says why. `invalid`: it will not be there (no such host, another job key, another service).
  static Result<StoreConnection> open(const Endpoint& endpoint, std::string_view job_key,
                                      Clock::time_point deadline);

  struct Request {
    FrameType type{};
    std::string_view key;
    std::span<const std::byte> value;
  };
  // After any failure the connection is useless: an answer may still be on its way.
  Result<StoreReply> ask(const Request& request, Clock::time_point deadline);

 private:
  explicit StoreConnection(Descriptor socket) noexcept : socket_{std::move(socket)} {}
  Status send_frame(const Request& request, Clock::time_point deadline);
  Result<StoreReply> receive_frame(FrameSource source, Clock::time_point deadline);
  Status shake_hands(std::string_view job_key, Clock::time_point deadline);

  Descriptor socket_;
  Bytes in_;
};

// The failure that a frame of type failure carries.
Status failure_of(const StoreReply& reply);

}  // namespace m2n::transport
