// One channel of one rank: its context and whichever ends the rank's roles give it. Lives until the
// last Channel, Ticket and Batch are gone; closed before that.
#pragma once

#include <chrono>
#include <memory>

#include "collectives/attention_end.hpp"
#include "collectives/channel_end.hpp"
#include "collectives/expert_end.hpp"
#include "m2n/channel.hpp"

namespace m2n {

struct ChannelImpl : std::enable_shared_from_this<ChannelImpl> {
  std::shared_ptr<collectives::GroupCore> group;  // keeps workers and transports alive
  collectives::ChannelContext context;
  std::unique_ptr<collectives::AttentionEnd> attention;
  std::unique_ptr<collectives::ExpertEnd> expert;
  ExpertFunction expert_function;
  bool left = false;  // has said `close` to the peers and gone from the group's list
  // Its expert end gives nothing any more, as far as is known. Whoever looks at several channels
  // asks the others: to be told why again and again costs a text each time.
  bool dried_up = false;

  ~ChannelImpl();
  bool is_open() const noexcept {
    return context.state.load(std::memory_order_acquire) == collectives::ChannelState::open;
  }
  void close();
  void abort() noexcept;
  Batch wrap(BatchState* state) { return Batch{shared_from_this(), state}; }
  Ticket wrap(std::uint64_t operation) { return Ticket{shared_from_this(), operation}; }

  static const std::shared_ptr<ChannelImpl>& of(const Channel& channel) { return channel.impl_; }
  static const ChannelImpl* of(const Ticket& ticket) { return ticket.channel_.get(); }
  static const ChannelImpl* of(const Batch& batch) { return batch.channel_.get(); }
  static BatchState* state_of(const Batch& batch) { return batch.state_; }
  // The handle is used up and does nothing when it goes.
  static void spend(Ticket& ticket) noexcept { ticket.channel_.reset(); }
  static void spend(Batch& batch) noexcept {
    batch.channel_.reset();
    batch.state_ = nullptr;
  }
  static Channel handle(std::shared_ptr<ChannelImpl> impl) { return Channel{std::move(impl)}; }
};

namespace collectives {

// Collective: registers windows, exchanges and attaches them.
Result<std::shared_ptr<ChannelImpl>> open_channel(const std::shared_ptr<GroupCore>& group,
                                                  const ChannelConfig& config,
                                                  const OpenOptions& options);

// The next batch of any channel of this worker whose end has an expert function: received, computed
// and replied to. `again` if there is none. Adds the time the expert function took to `busy`.
Status serve_once(GroupCore& group, Worker& worker, std::chrono::nanoseconds& busy);

// `invalid` naming the first field that is wrong for this group.
Status check_config(const ChannelConfig& config, std::uint32_t expert_ranks, std::int32_t rank);
Status check_config(const GroupConfig& config);

}  // namespace collectives
}  // namespace m2n
