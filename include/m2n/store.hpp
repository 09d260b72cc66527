// Rendezvous: a small key-value store through which ranks find each other. Used at set-up only.
// All methods may be called from any thread. Keys are UTF-8 without '\0', at most 512 bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "m2n/export.hpp"
#include "m2n/status.hpp"

namespace m2n {

using Bytes = std::vector<std::byte>;

class M2N_EXPORT Store {
 public:
  virtual ~Store() = default;
  // Writes or replaces a value, at most 16 MiB.
  virtual Status set(std::string_view key, std::span<const std::byte> value) = 0;
  // The value, or `again` if the key is not there yet.
  virtual Result<Bytes> get(std::string_view key) = 0;
  // Blocks until the key is there. `timeout` names the key.
  virtual Result<Bytes> wait(std::string_view key, std::chrono::nanoseconds timeout) = 0;
  // Adds to a counter (8 bytes little endian, absent = 0) and returns the sum. Atomic over all
  // ranks.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t delta) = 0;
};

// Ranks are threads of one process that share this object.
M2N_EXPORT std::shared_ptr<Store> make_inproc_store();

// Ranks are processes that share a directory. Values appear by rename, so a reader never sees half
// of one. The directory is made if it is missing (mode 0700).
M2N_EXPORT Result<std::shared_ptr<Store>> make_file_store(std::string_view directory);

struct TcpStoreConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // the server may use 0 = any free port; see `port` below
  bool server = false;     // true on exactly one rank (world rank 0): it listens and serves
  std::string job_key;     // empty = M2N_JOB_KEY, else the store is trusted
  std::chrono::milliseconds start_timeout{60000};
};

// One rank serves, all connect (with retries until start_timeout). With a job key every connection
// proves it by HMAC-SHA-256 before it may read or write.
M2N_EXPORT Result<std::shared_ptr<Store>> make_tcp_store(const TcpStoreConfig& config);

// The port a server of make_tcp_store listens on (0 if `store` is no such server).
M2N_EXPORT std::uint16_t tcp_store_port(const Store& store) noexcept;

}  // namespace m2n
