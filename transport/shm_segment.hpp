// One shared file without a name, mapped: a header page that proves what it is, then the user's
// memory. Made by its owner, opened by peers through /proc. Set-up only; used by the thread of the
// transport instance that owns it.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transport/shm_blob.hpp"
#include "transport/transport.hpp"

namespace m2n::transport {

struct ShmSettings {
  std::string directory = "/dev/shm";  // M2N_SHM_DIR
  // How long connect and import_memory try again when the peer's file is not there.
  std::chrono::milliseconds patience{2000};
  // For tests: an errno that the next attempt to open a peer's file meets, or 0.
  std::function<int()> open_fault;
  bool process_handles = true;  // false: as on a kernel that has none (pidfd_open)
};

constexpr std::size_t shm_page_bytes = 4096;

// Of the file that holds `bytes` of user memory: a header page and whole pages.
constexpr std::uint64_t shm_file_bytes(std::uint64_t bytes) noexcept {
  return shm_page_bytes + (bytes + shm_page_bytes - 1) / shm_page_bytes * shm_page_bytes;
}

class ShmSegment {
 public:
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  // In a process that was forked from the owner it leaves everything alone.
  ~ShmSegment();

  // Makes the file that `what` describes (kind, bytes, huge_pages, rank, worker, job), with every
  // page reserved.
  static Result<std::shared_ptr<ShmSegment>> make(ShmBlob what, const ShmSettings& settings);
  // Opens a peer's and checks it. `rank` is this rank, for texts.
  static Result<std::shared_ptr<ShmSegment>> open(const ShmBlob& what, const ShmSettings& settings,
                                                  std::int32_t rank);

  // Where it is and how to know it; without signal tables if it was made here.
  const ShmBlob& what() const noexcept { return what_; }
  std::byte* base() const noexcept { return mapping_ + shm_page_bytes; }
  // Nobody can open it any more.
  void seal() noexcept;
  bool sealed() const noexcept { return descriptor_ < 0; }

 private:
  ShmSegment(int descriptor, ShmBlob what);
  // Maps the file and brings in every page. 0 or an errno.
  int attach(bool owner);

  pid_t owner_pid_;
  int descriptor_;
  ShmBlob what_;
  std::byte* mapping_ = nullptr;
};

}  // namespace m2n::transport
