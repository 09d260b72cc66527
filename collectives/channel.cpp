// The public verbs of one end: checks, then the end that does the work.
#include "m2n/channel.hpp"

#include <utility>

#include "collectives/channel_check.hpp"
#include "collectives/channel_impl.hpp"

namespace m2n {

using namespace collectives;  // NOLINT(google-build-using-namespace)

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

Status Channel::arena_release(const ArenaBlock& block) {
  if (Status status = check_attention(impl_, "arena_release"); !status) return status;
  return impl_->attention->arena_release(block);
}

Status Channel::cancel(Ticket& ticket) {
  if (Status status = check_ticket(impl_, ticket, "cancel"); !status) return status;
  ticket = Ticket{};
  impl_->attention->reap();
  return {};
}

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
  BatchState& state = *ChannelImpl::state_of(batch);
  Status status = impl_->expert->reply(state, per_source);
  if (!state.in_use) ChannelImpl::spend(batch);
  return status;
}

Status Channel::reply(Batch& batch, const Outputs& grouped) {
  if (Status status = check_batch(impl_, batch, "reply"); !status) return status;
  BatchState& state = *ChannelImpl::state_of(batch);
  Status status = impl_->expert->reply_grouped(state, grouped);
  if (!state.in_use) ChannelImpl::spend(batch);
  return status;
}

Status Channel::reply_rows(Batch& batch, std::size_t source, std::uint32_t rows,
                           const Outputs& outputs) {
  if (Status status = check_batch(impl_, batch, "reply_rows"); !status) return status;
  BatchState& state = *ChannelImpl::state_of(batch);
  Status status = impl_->expert->reply_rows(state, source, rows, outputs);
  if (!state.in_use) ChannelImpl::spend(batch);
  return status;
}

Status Channel::await_rows(const Batch& batch, std::size_t source, std::uint32_t rows,
                           Timeout timeout) {
  if (Status status = check_batch(impl_, batch, "await_rows"); !status) return status;
  return cut_off(impl_->expert->await_rows(*ChannelImpl::state_of(batch), source, rows, timeout));
}

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

Status Channel::close() {
  if (!impl_) return no_channel("close");
  if (!impl_->group->owned()) return used_in_child("close", impl_->context.rank());
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

}  // namespace m2n
