#include "transport/inproc.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <compare>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "transport/blob_codec.hpp"
#include "transport/mapped_transport.hpp"
#include "transport/text.hpp"

namespace m2n::transport {
namespace {

constexpr std::uint64_t address_magic = 0x3161'6369'6e32'6d00;  // an inproc address, version 1
constexpr std::uint64_t memory_magic = 0x316d'6369'6e32'6d00;   // an inproc memory, version 1
constexpr std::size_t max_job_bytes = 256;
constexpr std::align_val_t page{4096};

// Memory that lives until the owner and every importer have dropped it.
class HeapBlock {
 public:
  explicit HeapBlock(std::size_t bytes)
      : base_{static_cast<std::byte*>(::operator new(bytes, page, std::nothrow))}, bytes_{bytes} {}
  HeapBlock(const HeapBlock&) = delete;
  HeapBlock& operator=(const HeapBlock&) = delete;
  ~HeapBlock() { ::operator delete(base_, page); }
  std::byte* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_;
};

struct Exported {
  std::shared_ptr<HeapBlock> block;
  std::vector<SignalTable> signals;
};

struct InstanceKey {
  std::string job;
  std::uint32_t world_rank = 0;
  std::uint32_t worker = 0;
  std::uint64_t serial = 0;
  auto operator<=>(const InstanceKey&) const = default;
};

struct MemoryKey {
  std::uint64_t instance = 0;
  std::uint32_t memory = 0;
  auto operator<=>(const MemoryKey&) const = default;
};

class Registry {
 public:
  // Never destroyed: ranks may end after main has returned.
  static Registry& get() {
    static Registry* registry = new Registry;
    return *registry;
  }
  std::uint64_t enter(InstanceKey key, std::shared_ptr<Doorbell> doorbell) {
    const std::lock_guard lock{mutex_};
    key.serial = ++serial_;
    const std::uint64_t serial = key.serial;
    instances_.emplace(std::move(key), std::move(doorbell));
    return serial;
  }
  void leave(const InstanceKey& key) {
    const std::lock_guard lock{mutex_};
    instances_.erase(key);
    memories_.erase(memories_.lower_bound({key.serial, 0}),
                    memories_.lower_bound({key.serial + 1, 0}));
  }
  std::shared_ptr<Doorbell> find(const InstanceKey& key) {
    const std::lock_guard lock{mutex_};
    const auto found = instances_.find(key);
    return found != instances_.end() ? found->second : nullptr;
  }
  void share(MemoryKey key, Exported exported) {
    const std::lock_guard lock{mutex_};
    memories_.insert_or_assign(key, std::move(exported));
  }
  void unshare(MemoryKey key) {
    const std::lock_guard lock{mutex_};
    memories_.erase(key);
  }
  Exported find(MemoryKey key) {
    const std::lock_guard lock{mutex_};
    const auto found = memories_.find(key);
    return found != memories_.end() ? found->second : Exported{};
  }

 private:
  std::mutex mutex_;
  std::uint64_t serial_ = 0;
  std::map<InstanceKey, std::shared_ptr<Doorbell>> instances_;
  std::map<MemoryKey, Exported> memories_;
};

class Inproc final : public MappedTransport {
 public:
  explicit Inproc(const Options& options)
      : MappedTransport{options}, doorbell_{std::make_shared<Doorbell>()} {
    key_ = {options.job, options.world_rank, options.worker, 0};
    key_.serial = Registry::get().enter(key_, doorbell_);
  }
  ~Inproc() override { Registry::get().leave(key_); }

  std::string_view name() const noexcept override { return "inproc"; }
  Blob address() const override;
  Result<PeerId> connect(std::span<const std::byte> address) override;
  void drop_memory(MemoryId memory) noexcept override;
  Result<Blob> export_memory(MemoryId memory) override;
  void seal_memory(MemoryId memory) noexcept override;
  Result<RemoteId> import_memory(PeerId peer, std::span<const std::byte> blob) override;
  Doorbell& doorbell() noexcept override { return *doorbell_; }
  Status take_failure() override { return {}; }  // a thread does not die without its process

 private:
  Result<Allocation> allocate(const Region& region) override;
  MemoryKey key_of(MemoryId memory) const noexcept {
    return {key_.serial, static_cast<std::uint32_t>(memory)};
  }

  InstanceKey key_;
  std::shared_ptr<Doorbell> doorbell_;
};

Blob Inproc::address() const {
  BlobWriter out;
  out.u64(address_magic);
  out.u32(static_cast<std::uint32_t>(getpid()));
  out.u32(key_.world_rank);
  out.u32(key_.worker);
  out.u64(key_.serial);
  out.text(key_.job);
  return out.take();
}

Result<PeerId> Inproc::connect(std::span<const std::byte> address) {
  BlobReader in{address};
  const std::uint64_t magic = in.u64();
  const std::uint32_t pid = in.u32();
  InstanceKey key;
  key.world_rank = in.u32();
  key.worker = in.u32();
  key.serial = in.u64();
  key.job = in.text(max_job_bytes);
  if (!in.complete() || magic != address_magic) {
    return bad("connect", "address", std::to_string(address.size()) + " other bytes",
               "the address of an inproc transport of this version");
  }
  const std::string who = "rank " + std::to_string(key.world_rank);
  if (pid != static_cast<std::uint32_t>(getpid())) {
    return refuse({"connect", "address", who + " in process " + std::to_string(pid),
                   "ranks that are threads of one process", rank(),
                   "GroupConfig::transport = shm"});
  }
  if (key.job != options_.job) {
    return bad("connect", "address", who + " of job " + key.job, "job " + options_.job);
  }
  std::shared_ptr<Doorbell> doorbell = Registry::get().find(key);
  if (doorbell == nullptr) {
    return Status{Code::peer_failed, Scope::peer,
                  "connect: " + who + ", worker " + std::to_string(key.worker) +
                      ", is gone (rank " + std::to_string(rank()) + ")",
                  static_cast<std::int32_t>(key.world_rank)};
  }
  Peer peer;
  peer.world_rank = key.world_rank;
  peer.doorbell = doorbell.get();
  peer.backing = std::move(doorbell);
  return keep(std::move(peer));
}

Result<MappedTransport::Allocation> Inproc::allocate(const Region& region) {
  auto block = std::make_shared<HeapBlock>(region.bytes);
  if (block->base() == nullptr) {
    return refuse({"add_memory", "bytes", std::to_string(region.bytes), "what the heap has left",
                   rank(), "ChannelConfig::max_tokens or depth, smaller"},
                  Code::system);
  }
#ifdef MADV_HUGEPAGE
  if (region.huge_pages) {
    madvise(block->base(), region.bytes / 4096 * 4096, MADV_HUGEPAGE);  // a wish: refusal is fine
  }
#endif
  std::memset(block->base(), 0, region.bytes);
  Allocation allocation;
  allocation.base = block->base();
  allocation.backing = std::move(block);
  return allocation;
}

void Inproc::drop_memory(MemoryId memory) noexcept {
  seal_memory(memory);
  MappedTransport::drop_memory(memory);
}

Result<Blob> Inproc::export_memory(MemoryId memory) {
  const auto found = exportable("export_memory", memory);
  if (!found) return found.status();
  Registry::get().share(
      key_of(memory), {std::static_pointer_cast<HeapBlock>((*found)->backing), (*found)->signals});
  BlobWriter out;
  out.u64(memory_magic);
  out.u32(static_cast<std::uint32_t>(getpid()));
  out.u64(key_.serial);
  out.u32(static_cast<std::uint32_t>(memory));
  return out.take();
}

void Inproc::seal_memory(MemoryId memory) noexcept {
  Registry::get().unshare(key_of(memory));
}

Result<RemoteId> Inproc::import_memory(PeerId peer, std::span<const std::byte> blob) {
  Peer* owner = peers_.find(peer);
  if (owner == nullptr)
    return bad("import_memory", "peer", "an unknown id", "what connect returned");
  BlobReader in{blob};
  const std::uint64_t magic = in.u64();
  const std::uint32_t pid = in.u32();
  MemoryKey key;
  key.instance = in.u64();
  key.memory = in.u32();
  if (!in.complete() || magic != memory_magic || pid != static_cast<std::uint32_t>(getpid())) {
    return bad("import_memory", "blob", std::to_string(blob.size()) + " other bytes",
               "what export_memory of an inproc peer returned");
  }
  Exported exported = Registry::get().find(key);
  if (exported.block == nullptr) {
    return Status{Code::peer_failed, Scope::peer,
                  "import_memory: the memory of rank " + std::to_string(owner->world_rank) +
                      " is gone or sealed (rank " + std::to_string(rank()) + ")",
                  static_cast<std::int32_t>(owner->world_rank)};
  }
  RemoteMemory remote;
  remote.peer = peer;
  remote.base = exported.block->base();
  remote.bytes = exported.block->bytes();
  remote.signals = std::move(exported.signals);
  remote.backing = std::move(exported.block);
  return keep(std::move(remote));
}

}  // namespace

Result<std::unique_ptr<Transport>> open_inproc(const Options& options) {
  if (options.job.size() > max_job_bytes) {
    return refuse({"open_transport", "job", std::to_string(options.job.size()) + " bytes",
                   "0.." + std::to_string(max_job_bytes),
                   static_cast<std::int32_t>(options.world_rank), "Options::job"});
  }
  return std::unique_ptr<Transport>{std::make_unique<Inproc>(options)};
}

}  // namespace m2n::transport
