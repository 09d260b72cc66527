#include "transport/shm_blob.hpp"

#include <limits>

#include "m2n/version.hpp"
#include "transport/blob_codec.hpp"
#include "transport/shm_segment.hpp"

namespace m2n::transport {
namespace {

constexpr std::uint64_t blob_magic = 0x626f'6c62'6d68'736d;
constexpr std::size_t table_bytes = 20;

Status bad_blob(const std::string& what) {
  return {Code::invalid, Scope::operation, "the bytes from the peer are no shm blob: " + what};
}

// Sizes that no file of ours can have.
bool sizes_hold(const ShmBlob& blob) {
  constexpr std::uint64_t limit = std::numeric_limits<std::int64_t>::max() / 2;
  return blob.bytes != 0 && blob.bytes <= limit && blob.file_bytes == shm_file_bytes(blob.bytes);
}

}  // namespace

Blob write_shm_blob(const ShmBlob& blob) {
  BlobWriter out;
  out.u64(blob_magic);
  out.u32(wire_version);
  out.u32(static_cast<std::uint32_t>(blob.kind));
  out.u32(static_cast<std::uint32_t>(blob.pid));
  out.u32(static_cast<std::uint32_t>(blob.descriptor));
  out.u64(blob.device);
  out.u64(blob.inode);
  out.u64(blob.file_bytes);
  out.u64(blob.bytes);
  out.u32(blob.huge_pages ? 1 : 0);
  out.u32(blob.world_rank);
  out.u32(blob.worker);
  for (const std::uint64_t part : blob.nonce) out.u64(part);
  out.text(blob.job);
  out.u32(static_cast<std::uint32_t>(blob.signals.size()));
  for (const SignalTable& table : blob.signals) {
    out.u64(table.offset);
    out.u64(table.stride);
    out.u32(table.count);
  }
  return out.take();
}

Result<ShmBlob> parse_shm_blob(std::span<const std::byte> bytes) {
  BlobReader in{bytes};
  if (in.u64() != blob_magic) return bad_blob("another magic");
  const std::uint32_t version = in.u32();
  if (in.ok() && version != wire_version) {
    return bad_blob("wire version " + std::to_string(version) + ", this is " +
                    std::to_string(wire_version));
  }
  ShmBlob blob;
  const std::uint32_t kind = in.u32();
  blob.pid = static_cast<std::int32_t>(in.u32());
  blob.descriptor = static_cast<std::int32_t>(in.u32());
  blob.device = in.u64();
  blob.inode = in.u64();
  blob.file_bytes = in.u64();
  blob.bytes = in.u64();
  const std::uint32_t huge_pages = in.u32();
  blob.huge_pages = huge_pages != 0;
  blob.world_rank = in.u32();
  blob.worker = in.u32();
  for (std::uint64_t& part : blob.nonce) part = in.u64();
  blob.job = in.text(ShmBlob::max_job_bytes);
  const std::uint32_t tables = in.u32();
  if (!in.ok()) return bad_blob("it ends early");
  if (kind != static_cast<std::uint32_t>(ShmKind::doorbell) &&
      kind != static_cast<std::uint32_t>(ShmKind::memory)) {
    return bad_blob("kind " + std::to_string(kind));
  }
  if (huge_pages > 1) return bad_blob("flags " + std::to_string(huge_pages));
  blob.kind = static_cast<ShmKind>(kind);
  if (blob.pid <= 0 || blob.descriptor < 0) return bad_blob("a negative pid or descriptor");
  if (huge_pages > 1) return bad_blob("huge_pages = " + std::to_string(huge_pages));
  if (!sizes_hold(blob)) return bad_blob("sizes that do not fit each other");
  if (tables > ShmBlob::max_tables || in.left() != tables * table_bytes) {
    return bad_blob(std::to_string(tables) + " tables in " + std::to_string(in.left()) + " bytes");
  }
  blob.signals.reserve(tables);
  for (std::uint32_t i = 0; i < tables; ++i) {
    SignalTable table;
    table.offset = in.u64();
    table.stride = in.u64();
    table.count = in.u32();
    if (!signal_table_fits(table, blob.bytes)) return bad_blob("a table outside its memory");
    blob.signals.push_back(table);
  }
  if (!in.complete()) return bad_blob("bytes are left over");
  return blob;
}

}  // namespace m2n::transport
