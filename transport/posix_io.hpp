// An owned file descriptor, and whole reads and writes of small files. Used at set-up; any thread.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "m2n/status.hpp"
#include "m2n/store.hpp"

namespace m2n::transport {

class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int number) noexcept : number_{number} {}
  Descriptor(Descriptor&& other) noexcept : number_{std::exchange(other.number_, -1)} {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }
  void reset() noexcept {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }
  int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }

 private:
  int number_ = -1;
};

// `system` with "<what>: <the system's words>", from errno.
Status system_error(std::string_view what);

// The whole file; `again` if there is none, `system` if it cannot be read or is over `limit`.
Result<Bytes> read_small_file(const std::string& path, std::size_t limit);
// Replaces the file in one step: readers see the old content or the new one. The temporary file
// lies in the same directory.
Status replace_small_file(const std::string& path, std::span<const std::byte> content);
// Makes the directory (0700) and its missing parents; ok if it is there already.
Status make_directories(const std::string& path);
// An exclusive lock on `path` (made if missing), held until the descriptor is closed, also by
// death.
Result<Descriptor> lock_file(const std::string& path, std::chrono::nanoseconds timeout);

}  // namespace m2n::transport
