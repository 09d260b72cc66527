// Sockets of the TCP store: resolve, listen, connect with a deadline, send and receive parts. Never
// blocks longer than the deadline, but for the resolver. Callable from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "m2n/status.hpp"
#include "m2n/store.hpp"
#include "transport/posix_io.hpp"
#include "transport/store_common.hpp"

namespace m2n::transport {

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  std::string text() const;  // "host:port", "[::1]:port"
};

struct Listener {
  Descriptor socket;
  std::uint16_t port = 0;
};

// An address of this host is bound alone; a host name, or an address that other hosts map to this
// one, means every interface, as the name of a host often resolves to loopback on the host itself.
Result<Listener> listen_at(const Endpoint& endpoint);

// One try. `again`: not there yet (refused, unreachable, resolver not ready); the text says why.
// `invalid`: no such host.
Result<Descriptor> connect_once(const Endpoint& endpoint, Clock::time_point deadline);

// A socket that reached itself: what connecting to a free local port may give.
bool is_self_connection(int socket);

// Waits for POLLIN or POLLOUT. `timeout` at the deadline.
Status wait_for(int socket, short events, Clock::time_point deadline);

// ok, `again` (nothing can be moved now), or `closed`. *moved = bytes; receive appends to `into`.
Status send_some(int socket, std::span<const std::byte> bytes, std::size_t* moved);
Status receive_some(int socket, Bytes& into, std::size_t limit);

}  // namespace m2n::transport
