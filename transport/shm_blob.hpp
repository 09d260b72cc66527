// What a shm transport tells its peers: where a file of it can be opened, and how to know that it
// is the right one. Pure: no file is touched here. Blobs come from other processes, so nothing in
// one is trusted before it has been checked. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/mapped_transport.hpp"
#include "transport/transport.hpp"

namespace m2n::transport {

enum class ShmKind : std::uint32_t { doorbell = 1, memory = 2 };

// Where one shared file is and what it must contain.
struct ShmBlob {
  static constexpr std::size_t max_job_bytes = 256;
  static constexpr std::size_t max_tables = 4096;

  ShmKind kind = ShmKind::doorbell;
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t bytes = 0;  // of the user's memory, behind the header page
  bool huge_pages = false;
  std::uint32_t world_rank = 0;
  std::uint32_t worker = 0;
  std::array<std::uint64_t, 2> nonce{};
  std::string job;
  std::vector<SignalTable> signals;
};

Blob write_shm_blob(const ShmBlob& blob);
// `invalid` with a text for anything that write_shm_blob cannot have made.
Result<ShmBlob> parse_shm_blob(std::span<const std::byte> bytes);

}  // namespace m2n::transport
