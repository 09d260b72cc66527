#include "transport/shm.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "transport/mapped_transport.hpp"
#include "transport/text.hpp"

namespace m2n::transport {
namespace {

// -1 and errno where there is none. Always close-on-exec.
int open_pidfd(pid_t pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
#else
  errno = ENOSYS;
  return -1;
#endif
}

// When a process was started, in ticks since boot; 0 once it has ended, also before it is reaped.
// Nothing where that cannot be told now.
std::optional<std::uint64_t> start_of(pid_t pid) noexcept {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return 0;
  if (file < 0) return std::nullopt;
  std::array<char, 1024> text{};
  const ssize_t bytes = read(file, text.data(), text.size() - 1);
  const bool gone = bytes < 0 && errno == ESRCH;
  close(file);
  if (gone) return 0;
  const char* name_end = bytes > 0 ? std::strrchr(text.data(), ')') : nullptr;
  char state = 'X';
  long threads = 0;
  unsigned long long start = 0;
  constexpr const char* fields =
      ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu";
  if (name_end == nullptr || std::sscanf(name_end, fields, &state, &threads, &start) != 3)
    return std::nullopt;
  // The first thread alone may have ended.
  return (state == 'Z' || state == 'X') && threads <= 1 ? 0 : start;
}

class Shm final : public MappedTransport {
 public:
  Shm(const Options& options, ShmSettings settings)
      : MappedTransport{options}, settings_{std::move(settings)}, owner_pid_{getpid()} {}
  ~Shm() override;
  Status start();

  std::string_view name() const noexcept override { return "shm"; }
  Blob address() const override { return write_shm_blob(segment_->what()); }
  Result<PeerId> connect(std::span<const std::byte> address) override;
  void disconnect(PeerId peer) noexcept override;
  Result<Blob> export_memory(MemoryId memory) override;
  void seal_memory(MemoryId memory) noexcept override;
  Result<RemoteId> import_memory(PeerId peer, std::span<const std::byte> blob) override;
  Doorbell& doorbell() noexcept override {
    return *std::launder(reinterpret_cast<Doorbell*>(segment_->base()));
  }
  Status take_failure() override;

 private:
  struct Watch {
    PeerId peer{};
    std::uint32_t world_rank = 0;
    std::int32_t pid = 0;
    std::optional<std::uint64_t> start;  // without a handle: tells it from a later process
  };

  Result<Allocation> allocate(const Region& region) override;
  void watch_peers() noexcept override;
  ShmBlob describe(ShmKind kind, std::size_t bytes) const;
  Status check_job(std::string_view function, const ShmBlob& blob) const;
  static bool has_ended(Watch& watch) noexcept;
  void unwatch(std::size_t index) noexcept;

  ShmSettings settings_;
  pid_t owner_pid_;
  std::shared_ptr<ShmSegment> segment_;  // holds the doorbell
  std::vector<pollfd> pidfd_polls_;      // one per watched peer, -1 without a handle,
  std::vector<Watch> watches_;           // in the same order
};

Shm::~Shm() {
  if (getpid() != owner_pid_) return;  // a forked child's descriptors may be something else
  for (const pollfd& entry : pidfd_polls_) {
    if (entry.fd >= 0) close(entry.fd);
  }
}

Status Shm::start() {
  auto made = ShmSegment::make(describe(ShmKind::doorbell, sizeof(Doorbell)), settings_);
  if (!made) return made.status();
  segment_ = std::move(*made);
  ::new (segment_->base()) Doorbell{};
  return {};
}

Status Shm::check_job(std::string_view function, const ShmBlob& blob) const {
  if (blob.job == options_.job) return {};
  return bad(function, "job", blob.job + " of rank " + std::to_string(blob.world_rank),
             "this group's job, " + options_.job);
}

Result<PeerId> Shm::connect(std::span<const std::byte> address) {
  const Result<ShmBlob> blob = parse_shm_blob(address);
  if (!blob) return bad("connect", "address", blob.status().text(), "what address() returned");
  if (blob->kind != ShmKind::doorbell || blob->bytes != sizeof(Doorbell)) {
    return bad("connect", "address", "a memory's blob", "what address() returned");
  }
  if (Status status = check_job("connect", *blob); !status) return status;
  // Opened before the file is checked: a process that took over the pid in between has not got the
  // file, and one that ends in between is seen to have ended.
  int pidfd = -1;
  const bool watched = blob->pid != owner_pid_;
  if (watched && settings_.process_handles) {
    pidfd = open_pidfd(blob->pid);
    if (pidfd < 0 && (errno == EMFILE || errno == ENFILE)) {
      return refuse({"connect", "descriptors", std::generic_category().message(errno),
                     "one more per peer", rank(), "ulimit -n"},
                    Code::system);
    }
  }
  const auto start = watched && pidfd < 0 ? start_of(blob->pid) : std::nullopt;
  Result<std::shared_ptr<ShmSegment>> opened = ShmSegment::open(*blob, settings_, rank());
  if (!opened) {
    if (pidfd >= 0) close(pidfd);
    return opened.status();
  }
  Peer peer;
  peer.world_rank = blob->world_rank;
  peer.doorbell = std::launder(reinterpret_cast<Doorbell*>((*opened)->base()));
  peer.backing = std::move(*opened);
  Result<PeerId> id = keep(std::move(peer));
  if (!id) {
    if (pidfd >= 0) close(pidfd);
    return id;
  }
  if (watched) {
    pidfd_polls_.push_back({pidfd, POLLIN, 0});
    watches_.push_back({*id, blob->world_rank, blob->pid, start});
    if (pidfd >= 0 && events_ != nullptr) events_->watch(pidfd);
  }
  return id;
}

void Shm::watch_peers() noexcept {
  for (const pollfd& entry : pidfd_polls_) {
    if (entry.fd >= 0) events_->watch(entry.fd);
  }
}

// A watch whose start could not be told yet takes what is told first.
bool Shm::has_ended(Watch& watch) noexcept {
  const auto now = start_of(watch.pid);
  if (!watch.start) watch.start = now;
  return now && (*now == 0 || *now != *watch.start);
}

void Shm::unwatch(std::size_t index) noexcept {
  if (const int pidfd = pidfd_polls_[index].fd; pidfd >= 0) {
    if (events_ != nullptr) events_->forget(pidfd);
    close(pidfd);
  }
  pidfd_polls_.erase(pidfd_polls_.begin() + static_cast<std::ptrdiff_t>(index));
  watches_.erase(watches_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Shm::disconnect(PeerId peer) noexcept {
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    if (watches_[i].peer != peer) continue;
    unwatch(i);
    break;
  }
  MappedTransport::disconnect(peer);
}

Status Shm::take_failure() {
  if (pidfd_polls_.empty()) return {};
  poll(pidfd_polls_.data(), pidfd_polls_.size(), 0);
  for (std::size_t i = 0; i < pidfd_polls_.size(); ++i) {
    if (pidfd_polls_[i].fd < 0 ? !has_ended(watches_[i])
                               : (pidfd_polls_[i].revents & (POLLIN | POLLHUP)) == 0)
      continue;
    const Watch dead = watches_[i];
    if (Peer* peer = peers_.find(dead.peer); peer != nullptr) peer->dead = true;
    unwatch(i);
    doorbell().ring();  // an event loop that is armed has not been told of it yet
    return {Code::peer_failed, Scope::peer,
            "rank " + std::to_string(dead.world_rank) + " (process " + std::to_string(dead.pid) +
                ") has ended (seen by rank " + std::to_string(rank()) + ")",
            static_cast<std::int32_t>(dead.world_rank)};
  }
  return {};
}

ShmBlob Shm::describe(ShmKind kind, std::size_t bytes) const {
  ShmBlob what;
  what.kind = kind;
  what.bytes = bytes;
  what.world_rank = options_.world_rank;
  what.worker = options_.worker;
  what.job = options_.job;
  return what;
}

Result<MappedTransport::Allocation> Shm::allocate(const Region& region) {
  ShmBlob what = describe(ShmKind::memory, region.bytes);
  what.huge_pages = region.huge_pages;
  auto made = ShmSegment::make(std::move(what), settings_);
  if (!made) return made.status();
  Allocation allocation;
  allocation.base = (*made)->base();
  allocation.backing = std::move(*made);
  return allocation;
}

Result<Blob> Shm::export_memory(MemoryId memory) {
  const auto found = exportable("export_memory", memory);
  if (!found) return found.status();
  const auto* segment = static_cast<const ShmSegment*>((*found)->backing.get());
  if (segment->sealed()) {
    return bad("export_memory", "memory", "sealed", "a memory that is not sealed yet");
  }
  if ((*found)->signals.size() > ShmBlob::max_tables) {
    return bad("export_memory", "signal tables", std::to_string((*found)->signals.size()),
               "0.." + std::to_string(ShmBlob::max_tables));
  }
  ShmBlob what = segment->what();
  what.signals = (*found)->signals;
  return write_shm_blob(what);
}

void Shm::seal_memory(MemoryId memory) noexcept {
  LocalMemory* found = memories_.find(memory);
  if (found == nullptr || found->backing == nullptr) return;
  static_cast<ShmSegment*>(found->backing.get())->seal();
}

Result<RemoteId> Shm::import_memory(PeerId peer, std::span<const std::byte> bytes) {
  const Peer* owner = peers_.find(peer);
  if (owner == nullptr) {
    return bad("import_memory", "peer", "an unknown id", "what connect returned");
  }
  Result<ShmBlob> blob = parse_shm_blob(bytes);
  if (!blob) {
    return bad("import_memory", "blob", blob.status().text(), "what export_memory returned");
  }
  const ShmBlob& expected = static_cast<const ShmSegment*>(owner->backing.get())->what();
  if (blob->kind != ShmKind::memory || blob->pid != expected.pid ||
      blob->world_rank != expected.world_rank || blob->worker != expected.worker) {
    return bad("import_memory", "blob",
               "a blob of rank " + std::to_string(blob->world_rank) + ", worker " +
                   std::to_string(blob->worker),
               "a memory of rank " + std::to_string(expected.world_rank) + ", worker " +
                   std::to_string(expected.worker));
  }
  if (Status status = check_job("import_memory", *blob); !status) return status;
  auto opened = ShmSegment::open(*blob, settings_, rank());
  if (!opened) return opened.status();
  RemoteMemory remote;
  remote.peer = peer;
  remote.base = (*opened)->base();
  remote.bytes = blob->bytes;
  remote.signals = std::move(blob->signals);
  remote.backing = std::move(*opened);
  return keep(std::move(remote));
}

}  // namespace

Result<std::unique_ptr<Transport>> open_shm(const Options& options, const ShmSettings& settings) {
  if (options.job.size() > ShmBlob::max_job_bytes) {
    return refuse({"open_transport", "job", std::to_string(options.job.size()) + " bytes",
                   "0.." + std::to_string(ShmBlob::max_job_bytes),
                   static_cast<std::int32_t>(options.world_rank), "Options::job"});
  }
  auto transport = std::make_unique<Shm>(options, settings);
  if (Status status = transport->start(); !status) return status;
  return std::unique_ptr<Transport>{std::move(transport)};
}

}  // namespace m2n::transport
