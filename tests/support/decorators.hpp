// Transports that wrap another one, for tests. All of them hide mapped memory, so that puts are
// really used. Used by the thread of the wrapped instance; the plans and counts that tests share
// with them may be read and changed from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace m2n::testing {

// Forwards everything but map() and map_signal().
class Decorator : public transport::Transport {
 public:
  explicit Decorator(std::unique_ptr<transport::Transport> inner) : inner_{std::move(inner)} {}
  std::string_view name() const noexcept override { return inner_->name(); }
  transport::Capabilities capabilities() const noexcept override;
  transport::Blob address() const override { return inner_->address(); }
  Result<transport::PeerId> connect(std::span<const std::byte> address) override;
  void disconnect(transport::PeerId peer) noexcept override { inner_->disconnect(peer); }
  Result<transport::MemoryId> add_memory(const transport::Region& region) override;
  std::byte* local(transport::MemoryId memory) noexcept override { return inner_->local(memory); }
  void drop_memory(transport::MemoryId memory) noexcept override { inner_->drop_memory(memory); }
  Result<std::uint32_t> add_signals(transport::MemoryId memory, std::size_t offset,
                                    std::size_t stride, std::uint32_t count) override;
  Result<transport::Blob> export_memory(transport::MemoryId memory) override;
  void seal_memory(transport::MemoryId memory) noexcept override { inner_->seal_memory(memory); }
  Result<transport::RemoteId> import_memory(transport::PeerId peer,
                                            std::span<const std::byte> blob) override;
  void drop_remote(transport::RemoteId remote) noexcept override { inner_->drop_remote(remote); }
  Status put(transport::PeerId peer, std::span<const transport::Segment> segments,
             transport::Target to, transport::SignalRef signal, std::uint64_t token) override;
  std::size_t progress(std::span<transport::Completion> out) override;
  std::byte* map(transport::RemoteId) noexcept override { return nullptr; }
  std::uint64_t* map_signal(transport::SignalRef) noexcept override { return nullptr; }
  void notify(transport::PeerId peer) noexcept override { inner_->notify(peer); }
  transport::Doorbell& doorbell() noexcept override { return inner_->doorbell(); }
  Status take_failure() override { return inner_->take_failure(); }
  Result<int> event_descriptor() override { return inner_->event_descriptor(); }
  Status arm_events(std::chrono::nanoseconds recheck) override {
    return inner_->arm_events(recheck);
  }

 protected:
  std::unique_ptr<transport::Transport> inner_;
};

// A put that has been accepted and not yet begun. Its sources are read when it is.
struct HeldPut {
  transport::PeerId peer{};
  std::vector<transport::Segment> segments;
  transport::Target to;
  transport::SignalRef signal;
  std::uint64_t token = 0;
  std::uint64_t release_at = 0;  // number of a progress call
};

// Keeps puts back. What the wrapped transport refuses later comes back as a completion.
class HoldingDecorator : public Decorator {
 public:
  using Decorator::Decorator;
  std::size_t progress(std::span<transport::Completion> out) override;

 protected:
  // Called at the start of each progress call: begin() what is due.
  virtual void release() = 0;
  void hold(HeldPut put) { held_.push_back(std::move(put)); }
  // False = `again`: it stays held.
  bool begin(std::size_t index);
  void complete(std::uint64_t token, Status status);

  std::vector<HeldPut> held_;

 private:
  std::deque<transport::Completion> completed_;
};

// What a FaultyTransport does. Set-up calls are connect, add_memory, add_signals, export_memory and
// import_memory, counted together from 0; puts are counted by attempt, from 0.
struct Faults {
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();
  std::atomic<std::uint64_t> setup_fail_at{never};  // answers `system`
  std::atomic<std::uint64_t> put_fail_at{never};    // answers `system`, nothing happened
  std::atomic<std::uint64_t> put_break_at{never};   // accepted, not delivered, completes `system`
  std::atomic<std::uint64_t> put_again_at{never};   // answers `again`
  std::atomic<std::uint64_t> put_delay_at{never};   // held for delay_calls progress calls
  std::atomic<std::uint64_t> again_every{0};        // every n-th put answers `again`; 0 = none
  std::atomic<std::uint64_t> delay_every{0};        // every n-th put is held
  std::atomic<std::uint64_t> delay_calls{3};
  std::atomic<std::uint64_t> kill_at{never};  // from this put on every put fails: peer_failed
  std::atomic<std::uint64_t> swallow_notify_every{0};  // every n-th notify is lost
  std::atomic<std::int32_t> killed_world_rank{-1};     // named in those failures

  std::atomic<std::uint64_t> setup_calls{0};
  std::atomic<std::uint64_t> puts{0};
  std::atomic<std::uint64_t> notifies{0};
  std::atomic<std::uint64_t> injected{0};  // faults that really happened
};

class FaultyTransport final : public HoldingDecorator {
 public:
  FaultyTransport(std::unique_ptr<transport::Transport> inner, std::shared_ptr<Faults> faults)
      : HoldingDecorator{std::move(inner)}, faults_{std::move(faults)} {}
  Result<transport::PeerId> connect(std::span<const std::byte> address) override;
  Result<transport::MemoryId> add_memory(const transport::Region& region) override;
  Result<std::uint32_t> add_signals(transport::MemoryId memory, std::size_t offset,
                                    std::size_t stride, std::uint32_t count) override;
  Result<transport::Blob> export_memory(transport::MemoryId memory) override;
  Result<transport::RemoteId> import_memory(transport::PeerId peer,
                                            std::span<const std::byte> blob) override;
  Status put(transport::PeerId peer, std::span<const transport::Segment> segments,
             transport::Target to, transport::SignalRef signal, std::uint64_t token) override;
  void notify(transport::PeerId peer) noexcept override;
  Status take_failure() override;

 private:
  void release() override;
  bool setup_fails();
  Status killed() const;

  std::shared_ptr<Faults> faults_;
  std::uint64_t calls_ = 0;
  bool reported_ = false;
};

// The puts of a pair land in a random order: each one is held, and progress() begins some of them.
class ReorderTransport final : public HoldingDecorator {
 public:
  // At most `window` puts of a pair are held.
  ReorderTransport(std::unique_ptr<transport::Transport> inner, std::uint64_t seed,
                   std::size_t window = 8)
      : HoldingDecorator{std::move(inner)}, random_{seed}, window_{window} {}
  Status put(transport::PeerId peer, std::span<const transport::Segment> segments,
             transport::Target to, transport::SignalRef signal, std::uint64_t token) override;

 private:
  void release() override;

  std::mt19937_64 random_;
  std::size_t window_;
};

struct Counts {
  std::atomic<std::uint64_t> puts{0};  // accepted ones
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> agains{0};
  std::atomic<std::uint64_t> notifies{0};
  std::atomic<std::uint64_t> progress_calls{0};
  std::atomic<std::uint64_t> completions{0};
};

class CountedTransport final : public Decorator {
 public:
  CountedTransport(std::unique_ptr<transport::Transport> inner, std::shared_ptr<Counts> counts)
      : Decorator{std::move(inner)}, counts_{std::move(counts)} {}
  Status put(transport::PeerId peer, std::span<const transport::Segment> segments,
             transport::Target to, transport::SignalRef signal, std::uint64_t token) override;
  std::size_t progress(std::span<transport::Completion> out) override;
  void notify(transport::PeerId peer) noexcept override;

 private:
  std::shared_ptr<Counts> counts_;
};

}  // namespace m2n::testing
