#include "transport/store_tcp_socket.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

namespace m2n::transport {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

int resolve(const char* host, std::uint16_t port, int flags, Addresses& into) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &list);
  if (error == 0) into.reset(list);
  return error;
}

std::string words_of(int resolver_error) {
  return resolver_error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(resolver_error);
}

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

Descriptor new_socket(const addrinfo& address) {
  return Descriptor{socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                           address.ai_protocol)};
}

// errno on failure
Descriptor try_listen(const addrinfo& address) {
  Descriptor socket = new_socket(address);
  if (!socket) return socket;
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.get(), address.ai_addr, address.ai_addrlen) == 0 &&
      listen(socket.get(), SOMAXCONN) == 0) {
    return socket;
  }
  const int error = errno;
  socket.reset();
  errno = error;
  return socket;
}

std::uint16_t local_port(int socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

Descriptor listen_everywhere(std::uint16_t port) {
  Descriptor listener;
  int error = EADDRNOTAVAIL;
  for (const char* any : {"::", "0.0.0.0"}) {
    Addresses addresses;
    if (resolve(any, port, AI_NUMERICHOST, addresses) != 0) continue;
    listener = try_listen(*addresses);
    if (listener) return listener;
    error = errno;
    if (error == EADDRINUSE || error == EACCES) break;
  }
  errno = error;
  return listener;
}

// Finishes a connect that is on its way; errno on failure.
bool connected(int socket, const addrinfo& address, Clock::time_point deadline) {
  if (connect(socket, address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS && errno != EINTR) return false;
  if (!wait_for(socket, POLLOUT, deadline)) {
    errno = ETIMEDOUT;
    return false;
  }
  int error = 0;
  socklen_t bytes = sizeof error;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return false;
  errno = error;
  return error == 0;
}

}  // namespace

std::string Endpoint::text() const {
  const bool bracket = host.find(':') != std::string::npos;
  return (bracket ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Listener> listen_at(const Endpoint& endpoint) {
  Addresses addresses;
  Listener listener;
  const char* numeric = endpoint.host == "localhost" ? "127.0.0.1" : endpoint.host.c_str();
  if (resolve(numeric, endpoint.port, AI_NUMERICHOST, addresses) == 0) {
    listener.socket = try_listen(*addresses);
    if (!listener.socket && errno == EADDRNOTAVAIL) {
      listener.socket = listen_everywhere(endpoint.port);
    }
  } else {
    listener.socket = listen_everywhere(endpoint.port);
  }
  if (!listener.socket) {
    const int error = errno;
    return Status{Code::system, Scope::group,
                  "make_tcp_store: cannot listen at " + endpoint.text() + ": " +
                      std::strerror(error) +
                      ", allowed: a free port of this host (rank 0; see MASTER_PORT, M2N_STORE, "
                      "TcpStoreConfig::port)"};
  }
  listener.port = local_port(listener.socket.get());
  return listener;
}

Result<Descriptor> connect_once(const Endpoint& endpoint, Clock::time_point deadline) {
  Addresses addresses;
  if (const int error = resolve(endpoint.host.c_str(), endpoint.port, 0, addresses); error != 0) {
    const bool hopeless = error != EAI_AGAIN && error != EAI_SYSTEM && error != EAI_MEMORY;
    return Status{hopeless ? Code::invalid : Code::again, Scope::group,
                  "host \"" + endpoint.host + "\" does not resolve: " + words_of(error)};
  }
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Descriptor socket = new_socket(*address);
    if (socket && connected(socket.get(), *address, deadline)) {
      if (is_self_connection(socket.get())) {
        error = ECONNREFUSED;  // nobody listens there
        continue;
      }
      set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      set_option(socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
      set_option(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, 10);
      set_option(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, 5);
      set_option(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, 3);
      return socket;
    }
    error = errno;
  }
  return Status{Code::again, Scope::group, std::strerror(error)};
}

bool is_self_connection(int socket) {
  sockaddr_storage mine{};
  sockaddr_storage theirs{};
  socklen_t mine_bytes = sizeof mine;
  socklen_t theirs_bytes = sizeof theirs;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&mine), &mine_bytes) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &theirs_bytes) != 0) {
    return false;
  }
  return mine_bytes == theirs_bytes && std::memcmp(&mine, &theirs, mine_bytes) == 0;
}

Status wait_for(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left < 0) return Code::timeout;
    pollfd entry{socket, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min<long>(left, INT_MAX)));
    if (ready > 0) return {};  // errors too: the next call on the socket tells them
    if (ready == 0 && left == 0) return Code::timeout;
    if (ready < 0 && errno != EINTR) return system_error("poll");
  }
}

Status send_some(int socket, std::span<const std::byte> bytes, std::size_t* moved) {
  *moved = 0;
  for (;;) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      *moved = static_cast<std::size_t>(sent);
      return {};
    }
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? Code::again : Code::closed;
  }
}

Status receive_some(int socket, Bytes& into, std::size_t limit) {
  std::array<std::byte, 65536> piece;
  for (;;) {
    const ssize_t got = recv(socket, piece.data(), std::min(piece.size(), limit), 0);
    if (got > 0) {
      into.insert(into.end(), piece.begin(), piece.begin() + got);
      return {};
    }
    if (got == 0) return Code::closed;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? Code::again : Code::closed;
  }
}

}  // namespace m2n::transport
