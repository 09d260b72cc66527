// What both ends of a channel have: a worker, one link per peer, and the state that ends every
// call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/group_core.hpp"
#include "collectives/pair_drain.hpp"
#include "collectives/pair_link.hpp"
#include "m2n/channel.hpp"

namespace m2n::collectives {

enum class ChannelState : std::uint8_t { open, closed, aborted };

// Shared by the ends; only `state` changes after open.
struct ChannelContext {
  GroupCore* group = nullptr;
  ChannelConfig config;
  RowFormat row_format;
  std::vector<std::size_t> row_offsets;
  std::vector<std::size_t> row_sizes;
  std::size_t row_bytes = 0;  // of one token, without padding
  std::atomic<ChannelState> state{ChannelState::open};

  std::int32_t rank() const noexcept { return group->rank(); }
  // ok, closed or aborted; `invalid` in a forked child of the process that created the group.
  Status check(std::string_view function) const;
};

class ChannelEnd {
 public:
  ChannelEnd(ChannelContext& context, Worker& worker) : context_{context}, worker_{worker} {
    worker.add(this);
  }
  ChannelEnd(const ChannelEnd&) = delete;
  ChannelEnd& operator=(const ChannelEnd&) = delete;

  Worker& worker() noexcept { return worker_; }
  std::vector<std::unique_ptr<PairLink>>& links() noexcept { return links_; }
  // Peers hear that nothing more comes from this end.
  void announce_close();
  // One call of drain: begin once this end is idle; try until every peer has said that it is done
  // with all rounds and has been told the same; finish once all ends of the rank are that far.
  void begin_drain();
  Status try_drain();
  void finish_drain();
  // Moves on everything of the worker, not of this end alone.
  void pump();
  // Takes control messages of all links. Not for every spin.
  void take_messages();
  void links_ready();
  Status timed_out_drain() const { return timed_out("drain", statistics_.operations, "peer"); }
  // Time that a call has waited, told of the peer that it found missing last.
  void count_wait(std::chrono::nanoseconds waited) {
    peer_statistics_[missing_].wait_ns += static_cast<std::uint64_t>(waited.count());
  }

 protected:
  // ok while the pair can be used; peer_failed or closed otherwise.
  Status check_link(const PairLink& link, std::string_view function) const;
  // A link that can still be used has something to hand over, or under way.
  bool has_pending() const noexcept;
  virtual void on_message(std::uint32_t peer, const ControlMessage& message) {
    static_cast<void>(peer);
    static_cast<void>(message);
  }
  ~ChannelEnd() { worker_.remove(this); }
  bool say_drained(std::uint32_t peer);

  // The peer that a waiting call found missing last, for time-outs and statistics.
  void blame(std::uint32_t peer) noexcept { missing_ = peer; }
  // Of the blamed peer: `again` if it may still answer, else why not.
  Status check_missing(std::string_view function) const;
  Status closed_by_peer(std::string_view function) const;
  Status timed_out(std::string_view function, std::uint64_t operation, const char* peer_role) const;
  // "operation 3 of channel "main" still waits for attention rank 1 (world rank 1)"
  std::string waits_for(std::uint64_t operation, const char* peer_role) const;

  ChannelContext& context_;
  Worker& worker_;
  std::vector<std::unique_ptr<PairLink>> links_;  // by the peer's role rank
  std::vector<bool> peer_closed_;
  std::vector<PairDrain> drains_;
  std::vector<PeerStatistics> peer_statistics_;
  Statistics statistics_;
  std::uint32_t missing_ = 0;
};

}  // namespace m2n::collectives
