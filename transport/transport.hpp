// The seam to whatever moves bytes: a one-sided put that is counted at the target.
// One instance belongs to one worker and is used by one thread. Nothing blocks but connect and
// add_memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "m2n/status.hpp"
#include "transport/doorbell.hpp"

namespace m2n::transport {

using Blob = std::vector<std::byte>;  // opaque bytes that the rendezvous carries to the other side

enum class PeerId : std::uint32_t {};
enum class MemoryId : std::uint32_t {};  // registered here
enum class RemoteId : std::uint32_t {};  // a peer's, imported here

struct Capabilities {
  bool mapped = false;          // map() and map_signal() give pointers
  bool needs_progress = false;  // a target must call progress() for puts to arrive
  std::uint32_t max_segments = 1;
  std::uint32_t max_in_flight = 1;  // puts before `again`
};

// Memory to register. A null base asks the transport to allocate: zeroed, page aligned, backed by
// real pages (never SIGBUS later), shareable with peers. Given memory may only be a source of puts.
struct Region {
  void* base = nullptr;
  std::size_t bytes = 0;
  bool huge_pages = false;
};

struct Segment {
  MemoryId memory{};
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

struct Target {
  RemoteId memory{};
  std::size_t offset = 0;
};

// Word `index` of table `table` of a remote memory (see add_signals).
struct SignalRef {
  RemoteId memory{};
  std::uint32_t table = 0;
  std::uint32_t index = 0;
};

struct Completion {
  std::uint64_t token = 0;
  Status status;  // ok = the source may be reused. Arrival is told by signals only.
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual Capabilities capabilities() const noexcept = 0;

  // What a peer needs to connect to this instance.
  virtual Blob address() const = 0;
  virtual Result<PeerId> connect(std::span<const std::byte> address) = 0;
  virtual void disconnect(PeerId peer) noexcept = 0;

  virtual Result<MemoryId> add_memory(const Region& region) = 0;
  virtual std::byte* local(MemoryId memory) noexcept = 0;
  virtual void drop_memory(MemoryId memory) noexcept = 0;
  // Registers `count` 64-bit words at offset, offset + stride, ...; returns the table's number
  // within its memory: 0, 1, ... Call before export_memory.
  virtual Result<std::uint32_t> add_signals(MemoryId memory, std::size_t offset, std::size_t stride,
                                            std::uint32_t count) = 0;
  virtual Result<Blob> export_memory(MemoryId memory) = 0;
  // Every peer that will import has done so: names, descriptors and the like can go.
  virtual void seal_memory(MemoryId memory) noexcept = 0;
  virtual Result<RemoteId> import_memory(PeerId peer, std::span<const std::byte> blob) = 0;
  virtual void drop_remote(RemoteId remote) noexcept = 0;

  // Copies the segments one after the other to the target and then raises the word by exactly one:
  // a reader that sees the new value with an acquire load sees all bytes. No order between puts. 0
  // bytes = a bare signal. `again` = nothing happened. Sources stay untouched until the completion.
  virtual Status put(PeerId peer, std::span<const Segment> segments, Target to, SignalRef signal,
                     std::uint64_t token) = 0;
  // Moves things on and returns how many completions were written.
  virtual std::size_t progress(std::span<Completion> out) = 0;

  // Remote memory as this CPU sees it, or null.
  virtual std::byte* map(RemoteId remote) noexcept = 0;
  virtual std::uint64_t* map_signal(SignalRef signal) noexcept = 0;

  // Wakes the peer if it sleeps; call after writing a mapped word with publish().
  virtual void notify(PeerId peer) noexcept = 0;
  // What this instance's owner sleeps on.
  virtual Doorbell& doorbell() noexcept = 0;

  // A peer that is found dead (once per peer), or ok. Cheap enough to call every 20 ms.
  virtual Status take_failure() = 0;

  // For owners that sleep in poll or epoll: made at the first call, the same at every later one,
  // closed with the instance. `unavailable` where a transport has none, `system` without room.
  virtual Result<int> event_descriptor() {
    return Status{Code::unavailable, Scope::operation,
                  "event_descriptor: transport " + std::string{name()} + " has none"};
  }
  // The descriptor stops being readable and becomes so again, once, at the next notify or put of a
  // peer, for a peer that has died and is not taken yet, and after `recheck` (0 = never: a ring may
  // get lost where a peer is out of descriptors). What came before is there to be seen. `invalid`
  // before event_descriptor().
  virtual Status arm_events(std::chrono::nanoseconds /*recheck*/) {
    return event_descriptor().status();
  }
};

struct Options {
  std::string job;  // nonce of this group, equal on all ranks
  std::uint32_t world_rank = 0;
  std::uint32_t worker = 0;
};

// Built in: "inproc", "shm". `invalid` names the known ones.
Result<std::unique_ptr<Transport>> open_transport(std::string_view name, const Options& options);

}  // namespace m2n::transport
