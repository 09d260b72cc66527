// One thread's transport instance and the pair ends that live on it. Everything here is used by the
// thread that owns the worker; only the stop flag may be set from elsewhere.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "collectives/spin_record.hpp"
#include "m2n/status.hpp"
#include "transport/transport.hpp"

namespace m2n::collectives {

class ChannelEnd;
class PairLink;

class Worker {
 public:
  Worker(std::unique_ptr<transport::Transport> transport, std::uint32_t world_rank,
         std::uint32_t index);

  transport::Transport& transport() noexcept { return *transport_; }
  std::uint32_t world_rank() const noexcept { return world_rank_; }
  std::uint32_t index() const noexcept { return index_; }

  // The peer's worker instance with this address; connected once.
  Result<transport::PeerId> connect(std::uint32_t rank, std::uint32_t worker,
                                    std::span<const std::byte> address);

  void add(PairLink* link);
  void add(ChannelEnd* end) { ends_.push_back(end); }
  void remove(ChannelEnd* end) noexcept { std::erase(ends_, end); }
  void remove(PairLink* link) noexcept;

  // Hands waiting puts to the transport, takes completions and control messages. Never blocks.
  void pump();
  // Control messages of all ends.
  void take_messages();
  // Asks the transport for dead peers, every few milliseconds at most, and fails their links.
  void check_peers();
  // Which channel is looked at first when one of several is to be taken: they take turns.
  std::size_t turn() const noexcept { return turn_; }
  SpinRecord& spin_record() noexcept { return spin_record_; }
  void set_turn(std::size_t turn) noexcept { turn_ = turn; }
  // True while something waits that only pump() moves on.
  bool has_pending() const noexcept;

 private:
  std::unique_ptr<transport::Transport> transport_;
  std::uint32_t world_rank_;
  std::uint32_t index_;
  std::size_t turn_ = 0;
  SpinRecord spin_record_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, transport::PeerId> peers_;
  std::vector<ChannelEnd*> ends_;
  std::vector<PairLink*> links_;  // by link id; null where one has gone
  std::array<transport::Completion, 32> completions_;
  std::chrono::steady_clock::time_point next_check_{};  // of peers that may have died
};

}  // namespace m2n::collectives
