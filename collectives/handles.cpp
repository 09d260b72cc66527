// Tickets and batches: move-only proof that something is owed, which says so when it is dropped.
#include <utility>

#include "collectives/channel_impl.hpp"

namespace m2n {

using collectives::ChannelState;

Ticket::Ticket(std::shared_ptr<ChannelImpl> channel, std::uint64_t operation) noexcept
    : channel_{std::move(channel)}, operation_{operation} {}
Ticket::Ticket(Ticket&& other) noexcept = default;
Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this == &other) return *this;
  Ticket old{std::move(*this)};
  channel_ = std::move(other.channel_);
  operation_ = other.operation_;
  return *this;
}
Ticket::~Ticket() {
  if (channel_) channel_->attention->abandon(operation_);
}

Batch::Batch(std::shared_ptr<ChannelImpl> channel, BatchState* state) noexcept
    : channel_{std::move(channel)}, state_{state} {}
Batch::Batch(Batch&& other) noexcept
    : channel_{std::move(other.channel_)}, state_{std::exchange(other.state_, nullptr)} {}
Batch& Batch::operator=(Batch&& other) noexcept {
  if (this == &other) return *this;
  Batch old{std::move(*this)};
  channel_ = std::move(other.channel_);
  state_ = std::exchange(other.state_, nullptr);
  return *this;
}
Batch::~Batch() {
  if (state_ == nullptr) return;
  if (channel_->context.state.load(std::memory_order_acquire) == ChannelState::open &&
      channel_->group->owned()) {
    channel_->expert->abandon(*state_);
  }
}
std::uint32_t Batch::layer() const noexcept {
  return state_ == nullptr || state_->sources.empty() ? 0 : state_->sources.front().layer;
}
std::uint32_t Batch::micro_batch() const noexcept {
  return state_ == nullptr || state_->sources.empty() ? 0 : state_->sources.front().micro_batch;
}
std::span<const BatchSource> Batch::sources() const noexcept {
  return state_ == nullptr ? std::span<const BatchSource>{} : state_->sources;
}
std::uint32_t Batch::rows_ready(std::size_t source) const noexcept {
  return state_ == nullptr ? 0 : channel_->expert->rows_ready(*state_, source);
}
const GroupedRows& Batch::grouped() const noexcept {
  static const GroupedRows none;
  return state_ == nullptr ? none : state_->grouped;
}
std::size_t Batch::total_rows() const noexcept {
  std::size_t rows = 0;
  for (const BatchSource& source : sources()) rows += source.rows;
  return rows;
}
std::size_t Batch::total_pairs() const noexcept {
  std::size_t pairs = 0;
  for (const BatchSource& source : sources()) pairs += source.pairs.size();
  return pairs;
}

}  // namespace m2n
