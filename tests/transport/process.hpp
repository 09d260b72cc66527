// Child processes for tests: forked, joined to the parent by a socket that carries blobs, killed
// when the test ends. Fork before starting threads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "transport/transport.hpp"

namespace m2n::testing {

// Length and bytes. False / nothing when the other side is gone, or after 30 s.
bool send_blob(int socket, const transport::Blob& blob);
std::optional<transport::Blob> receive_blob(int socket);

class Process {
 public:
  // `body` runs in a child with its end of the socket; what it returns is the exit status.
  explicit Process(const std::function<int(int socket)>& body);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  pid_t pid() const noexcept { return pid_; }
  int socket() const noexcept { return socket_; }
  void kill_now();
  // Until it is dead; it stays a zombie.
  void await_death();
  // Exit status, or 128 + signal. Reaps.
  int wait();

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

// A child's result when the machine does not permit what the test needs.
constexpr int not_permitted = 77;

// A new directory that only this user may enter, in /dev/shm; removed with what it holds.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory();
  const std::string& path() const noexcept { return path_; }
  std::size_t entries() const;

 private:
  std::string path_;
};

std::size_t open_descriptors();
// A tmpfs over `path` that only this process and its children see. False if not permitted.
bool mount_private_tmpfs(const std::string& path, std::size_t bytes);

}  // namespace m2n::testing
