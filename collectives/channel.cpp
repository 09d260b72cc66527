// The public verbs: checks of state and role, then the end that does the work.
#include "m2n/channel.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/channel_impl.hpp"
#include "collectives/hooks.hpp"
#include "transport/text.hpp"

namespace m2n {

using collectives::ChannelState;
using collectives::Deadline;
using transport::refuse;

namespace {

Status no_channel(std::string_view function) {
  return refuse({function, "channel", "empty", "one from Group::open", -1, "Group::open"});
}

Status no_role(const ChannelImpl& impl, std::string_view function, const char* role) {
  return refuse({function, "role", std::string{"not "} + role, role, impl.context.rank(),
                 "GroupConfig::attention_rank and expert_rank"});
}

Status check_attention(const std::shared_ptr<ChannelImpl>& impl, std::string_view function) {
  if (!impl) return no_channel(function);
  if (!impl->attention) return no_role(*impl, function, "attention");
  return impl->context.check(function);
}

Status check_expert(const std::shared_ptr<ChannelImpl>& impl, std::string_view function) {
  if (!impl) return no_channel(function);
  if (!impl->expert) return no_role(*impl, function, "expert");
  return impl->context.check(function);
}

// A ticket or batch after close belongs to an operation that was cut off.
Status cut_off(Status status) {
  if (status.code() != Code::closed || status.peer() >= 0) return status;
  return {Code::cancelled, Scope::operation, status.text()};
}

Status check_ticket(const std::shared_ptr<ChannelImpl>& impl, const Ticket& ticket,
                    std::string_view function) {
  if (Status status = check_attention(impl, function); !status) return cut_off(std::move(status));
  if (ChannelImpl::of(ticket) == impl.get()) return {};
  return refuse({function, "ticket", ticket ? "of another channel" : "empty or used up",
                 "a ticket of this channel that has not been combined", impl->context.rank(),
                 "Channel::dispatch"});
}

Status check_batch(const std::shared_ptr<ChannelImpl>& impl, const Batch& batch,
                   std::string_view function) {
  if (Status status = check_expert(impl, function); !status) return cut_off(std::move(status));
  if (ChannelImpl::of(batch) == impl.get()) return {};
  return refuse({function, "batch", batch ? "of another channel" : "empty or used up",
                 "a batch of this channel that has not been replied to", impl->context.rank(),
                 "Channel::receive"});
}

// What uses a ticket up: everything but a wait that may still succeed and a refused argument.
bool is_final(const Status& status) {
  return status || status.code() == Code::unavailable;
}

}  // namespace

// --- handles
// ---------------------------------------------------------------------------------------

Ticket::Ticket(std::shared_ptr<ChannelImpl> channel, std::uint64_t operation) noexcept
    : channel_{std::move(channel)}, operation_{operation} {}
Ticket::Ticket(Ticket&& other) noexcept = default;
Ticket& Ticket::operator=(Ticket&& other) noexcept {
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
  Batch old{std::move(*this)};
  channel_ = std::move(other.channel_);
  state_ = std::exchange(other.state_, nullptr);
  return *this;
}
Batch::~Batch() {
  if (state_ == nullptr) return;
  if (channel_->context.state.load(std::memory_order_acquire) == ChannelState::open) {
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

// --- attention end
// ---------------------------------------------------------------------------------

Result<Ticket> Channel::dispatch(const Dispatch& arguments) {
  if (Status status = check_attention(impl_, "dispatch"); !status) return status;
  Result<std::uint64_t> operation = impl_->attention->dispatch(arguments);
  if (!operation) return operation.status();
  return impl_->wrap(*operation);
}

Status Channel::combine(Ticket& ticket, MutableRows out, ConstRows add, Timeout timeout) {
  if (Status status = check_ticket(impl_, ticket, "combine"); !status) return status;
  Status status = cut_off(impl_->attention->combine(ticket.operation(), out, add, timeout));
  if (is_final(status)) ChannelImpl::spend(ticket);
  return status;
}

Status Channel::try_combine(Ticket& ticket, MutableRows out, ConstRows add) {
  if (Status status = check_ticket(impl_, ticket, "try_combine"); !status) return status;
  Status status = impl_->attention->try_combine(ticket.operation(), out, add);
  if (status.code() == Code::again) impl_->attention->pump();
  if (is_final(status)) ChannelImpl::spend(ticket);
  return status;
}

Result<bool> Channel::issued(const Ticket& ticket) {
  if (Status status = check_ticket(impl_, ticket, "issued"); !status) return status;
  impl_->attention->pump();
  return impl_->attention->issued(ticket.operation());
}

Result<bool> Channel::input_free(const Ticket& ticket) {
  if (Status status = check_ticket(impl_, ticket, "input_free"); !status) return status;
  return impl_->attention->input_free(ticket.operation());
}

Result<ArenaBlock> Channel::arena_acquire(std::uint32_t tokens) {
  if (Status status = check_attention(impl_, "arena_acquire"); !status) return status;
  return impl_->attention->arena_acquire(tokens);
}

Status Channel::cancel(Ticket& ticket) {
  if (Status status = check_ticket(impl_, ticket, "cancel"); !status) return status;
  ticket = Ticket{};
  impl_->attention->reap();
  return {};
}

// --- expert end
// ------------------------------------------------------------------------------------

Result<Batch> Channel::receive(Timeout timeout, const ReceivePolicy& policy) {
  if (Status status = check_expert(impl_, "receive"); !status) return status;
  Result<BatchState*> state = impl_->expert->receive(timeout, policy);
  if (!state) return cut_off(state.status());
  return impl_->wrap(*state);
}

Result<Batch> Channel::try_receive(const ReceivePolicy& policy) {
  if (Status status = check_expert(impl_, "try_receive"); !status) return status;
  Result<BatchState*> state = impl_->expert->try_receive(policy);
  if (state.code() == Code::again) impl_->expert->pump();
  if (!state) return state.status();
  return impl_->wrap(*state);
}

Status Channel::reply(Batch& batch, std::span<const Outputs> per_source) {
  if (Status status = check_batch(impl_, batch, "reply"); !status) return status;
  Status status = impl_->expert->reply(*ChannelImpl::state_of(batch), per_source);
  if (status) ChannelImpl::spend(batch);
  return status;
}

Status Channel::reply(Batch& batch, const Outputs& grouped) {
  if (Status status = check_batch(impl_, batch, "reply"); !status) return status;
  Status status = impl_->expert->reply_grouped(*ChannelImpl::state_of(batch), grouped);
  if (status) ChannelImpl::spend(batch);
  return status;
}

// --- both
// ------------------------------------------------------------------------------------------

Status Channel::progress() {
  if (!impl_) return no_channel("progress");
  if (Status status = impl_->context.check("progress"); !status) return status;
  if (impl_->attention) {
    impl_->attention->pump();
    impl_->attention->reap();
  }
  if (impl_->expert) impl_->expert->pump();
  return {};
}

Status Channel::drain(Timeout timeout) {
  if (!impl_) return no_channel("drain");
  if (Status status = impl_->context.check("drain"); !status) return status;
  ChannelImpl& impl = *impl_;
  bool attention_done = !impl.attention;
  bool expert_done = !impl.expert;
  auto step = [&]() -> Status {
    if (Status status = impl.context.check("drain"); !status) return status;
    if (!attention_done) {
      impl.attention->reap();
      const Status status =
          impl.attention->idle() ? impl.attention->try_drain() : Status{Code::again};
      if (status.code() != Code::again && !status) return status;
      attention_done = status.code() == Code::ok;
    }
    if (!expert_done) {
      const Status status = impl.expert->idle() ? impl.expert->try_drain() : Status{Code::again};
      if (status.code() != Code::again && !status) return status;
      expert_done = status.code() == Code::ok;
    }
    return attention_done && expert_done ? Status{} : Status{Code::again};
  };
  collectives::Worker& worker = impl.attention ? impl.attention->worker() : impl.expert->worker();
  const Deadline deadline{timeout, impl.group->step_timeout};
  const Status status = wait_until(worker, impl.group->wait, deadline, step, [&] {
    if (impl.attention) impl.attention->pump();
    if (impl.expert) impl.expert->pump();
  });
  if (status.code() != Code::timeout) return cut_off(status);
  return attention_done ? impl.expert->timed_out_drain() : impl.attention->timed_out_drain();
}

Status Channel::serve(Ticket& ticket, MutableRows out, ConstRows add, Timeout timeout) {
  if (Status status = check_ticket(impl_, ticket, "serve"); !status) return status;
  if (Status status = check_expert(impl_, "serve"); !status) return status;
  collectives::AttentionEnd& attention = *impl_->attention;
  const std::uint64_t operation = ticket.operation();
  auto step = [&]() -> Status {
    if (Status status = impl_->context.check("serve"); !status) return status;
    if (Status status = collectives::serve_once(*impl_->group, attention.worker()); !status) {
      if (status.code() != Code::again) return status;
    }
    return attention.try_combine(operation, out, add);
  };
  const Deadline deadline{
      timeout, operation == 0 ? impl_->group->start_timeout : impl_->group->step_timeout};
  Status status = cut_off(wait_until(attention.worker(), impl_->group->wait, deadline, step,
                                     [&] { attention.pump(); }));
  if (is_final(status)) ChannelImpl::spend(ticket);
  return status.code() == Code::timeout ? attention.timed_out_combine(operation) : status;
}

Status Channel::close() {
  if (!impl_) return no_channel("close");
  impl_->close();
  return {};
}

void Channel::abort() noexcept {
  if (impl_) impl_->abort();
}

RowFormat Channel::row_format() const noexcept {
  return impl_ ? impl_->context.row_format : RowFormat{};
}

const ChannelConfig& Channel::config() const noexcept {
  static const ChannelConfig none;
  return impl_ ? impl_->context.config : none;
}

Statistics Channel::attention_statistics() const noexcept {
  return impl_ && impl_->attention ? impl_->attention->statistics() : Statistics{};
}

Statistics Channel::expert_statistics() const noexcept {
  return impl_ && impl_->expert ? impl_->expert->statistics() : Statistics{};
}

Result<AnyBatch> receive_any(std::span<Channel> channels, Timeout timeout,
                             const ReceivePolicy& policy) {
  collectives::Worker* worker = nullptr;
  for (const Channel& channel : channels) {
    const std::shared_ptr<ChannelImpl>& impl = ChannelImpl::of(channel);
    if (Status status = check_expert(impl, "receive_any"); !status) return status;
    if (worker == nullptr) worker = &impl->expert->worker();
    if (worker != &impl->expert->worker()) {
      return refuse({"receive_any", "channels", "ends of two workers", "ends of one worker",
                     impl->context.rank(), "OpenOptions::expert_worker"});
    }
  }
  if (worker == nullptr)
    return refuse({"receive_any", "channels", "0", "at least 1", -1, "receive_any"});
  const collectives::GroupCore& group = *ChannelImpl::of(channels.front())->group;
  Result<AnyBatch> any{Code::again};
  auto step = [&]() -> Status {
    for (std::size_t i = 0; i < channels.size(); ++i) {
      ChannelImpl& impl = *ChannelImpl::of(channels[i]);
      if (Status status = impl.context.check("receive_any"); !status)
        return cut_off(std::move(status));
      Result<BatchState*> state = impl.expert->try_receive(policy);
      if (state.code() == Code::again) continue;
      if (!state) return state.status();
      any = AnyBatch{i, impl.wrap(*state)};
      return {};
    }
    return Code::again;
  };
  const Deadline deadline{timeout, group.step_timeout};
  const Status status = wait_until(*worker, group.wait, deadline, step, [&] {
    for (Channel& channel : channels) ChannelImpl::of(channel)->expert->pump();
  });
  if (status.code() == Code::timeout)
    return ChannelImpl::of(channels.front())->expert->timed_out_receive();
  if (!status) return status;
  return any;
}

}  // namespace m2n
