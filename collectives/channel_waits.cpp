// The public verbs that wait on more than one end: drain, serve, agree_pieces, receive_any.
#include <algorithm>
#include <string>
#include <utility>

#include "collectives/channel_check.hpp"
#include "collectives/channel_impl.hpp"
#include "m2n/channel.hpp"

namespace m2n {

using namespace collectives;  // NOLINT(google-build-using-namespace)

namespace {

// Tries to drain one end; ok while there is hope, with `done` set once it is.
template <class End>
Status drain_end(End* end, bool& done) {
  if (done || !end->idle()) return {};
  Status status = end->try_drain();
  done = status.code() == Code::ok;
  return status.code() == Code::again ? Status{} : status;
}

}  // namespace

Status Channel::drain(Timeout timeout) {
  if (!impl_) return no_channel("drain");
  if (Status status = impl_->context.check("drain"); !status) return status;
  if (impl_->attention && impl_->attention->has_open()) {
    return transport::refuse({"drain", "tickets", "some not combined",
                              "none: combine or drop them first", impl_->context.rank(),
                              "Channel::combine"});
  }
  ChannelImpl& impl = *impl_;
  bool attention_done = !impl.attention;
  bool expert_done = !impl.expert;
  auto step = [&]() -> Status {
    if (Status status = impl.context.check("drain"); !status) return status;
    if (impl.attention) impl.attention->reap();
    if (Status status = drain_end(impl.attention.get(), attention_done); !status) return status;
    if (Status status = drain_end(impl.expert.get(), expert_done); !status) return status;
    return attention_done && expert_done ? Status{} : Status{Code::again};
  };
  Worker& worker = impl.attention ? impl.attention->worker() : impl.expert->worker();
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
  AttentionEnd& attention = *impl_->attention;
  if (!impl_->expert_function || &impl_->expert->worker() != &attention.worker()) {
    return transport::refuse(
        {"serve", "ends", impl_->expert_function ? "of two workers" : "without an expert function",
         "ends of one worker, and an expert function", impl_->context.rank(), "OpenOptions"});
  }
  const std::uint64_t operation = ticket.operation();
  Status failed;  // of another operation or of the expert function: the ticket stays
  auto step = [&]() -> Status {
    if (Status status = impl_->context.check("serve"); !status) return status;
    if (Status served = serve_once(*impl_->group, attention.worker());
        !served && served.code() != Code::again) {
      failed = std::move(served);
      return Code::system;  // any code but `again`: `failed` says what it was
    }
    return attention.try_combine(operation, out, add);
  };
  const Deadline deadline{
      timeout, operation == 0 ? impl_->group->start_timeout : impl_->group->step_timeout};
  Status status = cut_off(wait_until(attention.worker(), impl_->group->wait, deadline, step,
                                     [&] { attention.pump(); }));
  if (!failed) return failed;
  if (is_final(status)) ChannelImpl::spend(ticket);
  return status.code() == Code::timeout ? attention.timed_out_combine(operation) : status;
}

Result<std::uint32_t> Channel::agree_pieces(std::uint64_t tokens, Timeout timeout) {
  if (Status status = check_attention(impl_, "agree_pieces"); !status) return status;
  ChannelImpl& impl = *impl_;
  const std::uint64_t most = impl.context.config.max_tokens;
  const std::uint64_t pieces =
      std::max<std::uint64_t>(tokens / most + (tokens % most != 0 ? 1 : 0), 1);
  std::uint64_t agreed = 0;
  auto step = [&]() -> Status {
    if (Status status = impl.context.check("agree_pieces"); !status) return status;
    return impl.attention->try_agree(pieces, agreed);
  };
  const Deadline deadline{timeout, impl.group->step_timeout};
  Status status = wait_until(impl.attention->worker(), impl.group->wait, deadline, step,
                             [&] { impl.attention->pump(); });
  if (status.code() == Code::timeout) return impl.attention->timed_out_agree();
  if (!status) return cut_off(std::move(status));
  if (agreed <= 0xffff'ffffu) return static_cast<std::uint32_t>(agreed);
  return transport::refuse({"agree_pieces", "pieces", std::to_string(agreed), "0..4294967295",
                            impl.context.rank(), "ChannelConfig::max_tokens"});
}

Result<AnyBatch> receive_any(std::span<Channel> channels, Timeout timeout,
                             const ReceivePolicy& policy) {
  Worker* worker = nullptr;
  for (const Channel& channel : channels) {
    const std::shared_ptr<ChannelImpl>& impl = ChannelImpl::of(channel);
    if (Status status = check_expert(impl, "receive_any"); !status) return status;
    if (worker == nullptr) worker = &impl->expert->worker();
    if (worker != &impl->expert->worker()) {
      return transport::refuse({"receive_any", "channels", "ends of two workers",
                                "ends of one worker", impl->context.rank(),
                                "OpenOptions::expert_worker"});
    }
  }
  if (worker == nullptr)
    return transport::refuse({"receive_any", "channels", "0", "at least 1", -1, "receive_any"});
  const GroupCore& group = *ChannelImpl::of(channels.front())->group;
  Result<AnyBatch> any{Code::again};
  bool first = false;
  for (const Channel& channel : channels) first |= channel.expert_statistics().operations == 0;
  auto step = [&]() -> Status {
    Status gone;  // of a channel that gives nothing any more; the others go on
    std::size_t alive = channels.size();
    for (std::size_t i = 0; i < channels.size(); ++i) {
      const std::size_t index = (worker->turn() + i) % channels.size();
      ChannelImpl& impl = *ChannelImpl::of(channels[index]);
      if (Status status = impl.context.check("receive_any"); !status)
        return cut_off(std::move(status));
      Result<BatchState*> state = impl.expert->try_receive(policy);
      if (state) {
        worker->set_turn(index + 1);
        any = AnyBatch{index, impl.wrap(*state)};
        return {};
      }
      if (state.code() == Code::again) continue;
      if (state.code() != Code::closed && state.code() != Code::peer_failed) return state.status();
      gone = state.status();
      --alive;
    }
    return alive == 0 ? gone : Status{Code::again};
  };
  const Deadline deadline{timeout, first ? group.start_timeout : group.step_timeout};
  const Status status = wait_until(*worker, group.wait, deadline, step, [&] {
    for (Channel& channel : channels) ChannelImpl::of(channel)->expert->pump();
  });
  if (status.code() == Code::timeout)
    return ChannelImpl::of(channels.front())->expert->timed_out_receive();
  if (!status) return status;
  return any;
}

}  // namespace m2n
