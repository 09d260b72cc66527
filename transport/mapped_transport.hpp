// What transports have in common whose peers' memory this CPU can load and store: put is a copy and
// a raised word, done when the call returns. Owned by one worker and used by its thread. A derived
// class finds peers and shares memory.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/event_set.hpp"
#include "transport/handles.hpp"
#include "transport/transport.hpp"

namespace m2n::transport {

// Words at offset, offset + stride, ... of a memory.
struct SignalTable {
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;
  std::uint32_t count = 0;
};
// Every word aligned to 8 and inside `bytes`, without overflow on the way. Pure.
bool signal_table_fits(const SignalTable& table, std::uint64_t bytes) noexcept;

class MappedTransport : public Transport {
 public:
  static constexpr std::uint32_t max_segments = 64;
  static constexpr std::uint32_t max_in_flight = 256;

  Capabilities capabilities() const noexcept override;
  void disconnect(PeerId peer) noexcept override;

  Result<MemoryId> add_memory(const Region& region) override;
  std::byte* local(MemoryId memory) noexcept override;
  void drop_memory(MemoryId memory) noexcept override;
  Result<std::uint32_t> add_signals(MemoryId memory, std::size_t offset, std::size_t stride,
                                    std::uint32_t count) override;
  void drop_remote(RemoteId remote) noexcept override;

  Status put(PeerId peer, std::span<const Segment> segments, Target to, SignalRef signal,
             std::uint64_t token) override;
  std::size_t progress(std::span<Completion> out) override;
  std::byte* map(RemoteId remote) noexcept override;
  std::uint64_t* map_signal(SignalRef signal) noexcept override;
  void notify(PeerId peer) noexcept override;

  Result<int> event_descriptor() override;
  Status arm_events(std::chrono::nanoseconds recheck) override;

 protected:
  struct Peer {
    std::uint32_t world_rank = 0;
    Doorbell* doorbell = nullptr;
    bool dead = false;
    std::shared_ptr<void> backing;  // keeps the doorbell alive
  };
  struct LocalMemory {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<void> backing;  // null = the caller's memory: only a source
    std::vector<SignalTable> signals;
  };
  struct RemoteMemory {
    PeerId peer{};
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<void> backing;
    std::vector<SignalTable> signals;
  };
  struct Allocation {
    std::byte* base = nullptr;
    std::shared_ptr<void> backing;
  };

  explicit MappedTransport(const Options& options) : options_{options} {}
  virtual Result<Allocation> allocate(const Region& region) = 0;

  Result<PeerId> keep(Peer peer);
  Result<RemoteId> keep(RemoteMemory remote);
  Status bad(std::string_view function, std::string_view argument, std::string actual,
             std::string allowed) const;
  // The memory behind an id that may be exported, or null and a reason.
  Result<LocalMemory*> exportable(std::string_view function, MemoryId memory);
  std::int32_t rank() const noexcept { return static_cast<std::int32_t>(options_.world_rank); }

  // The peers that may die are to be watched from now on.
  virtual void watch_peers() noexcept {}

  Options options_;
  HandleTable<PeerId, Peer> peers_;
  HandleTable<MemoryId, LocalMemory> memories_;
  HandleTable<RemoteId, RemoteMemory> remotes_;
  std::unique_ptr<EventSet> events_;  // null until an event loop asks

 private:
  Status check_sources(std::span<const Segment> segments, std::size_t& total);
  std::uint64_t* word_of(RemoteMemory& remote, SignalRef signal) noexcept;

  std::array<std::uint64_t, max_in_flight> finished_{};  // tokens, a ring
  std::uint32_t first_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace m2n::transport
