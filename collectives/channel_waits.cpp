// The public verbs that wait on more than one end: drain, serve, agree_pieces, receive_any.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "collectives/channel_check.hpp"
#include "collectives/channel_impl.hpp"
#include "m2n/channel.hpp"

namespace m2n {

using namespace collectives;  // NOLINT(google-build-using-namespace)

namespace {

// One end's part of a drain.
template <class End>
struct EndDrain {
  End* end = nullptr;  // or none
  bool begun = false;
  bool agreed = false;

  // ok while there is hope.
  Status step() {
    if (end == nullptr || agreed || !end->idle()) return {};
    if (!std::exchange(begun, true)) end->begin_drain();
    Status status = end->try_drain();
    agreed = bool{status};
    return status.code() == Code::again ? Status{} : status;
  }
  bool waits() const noexcept { return end != nullptr && !agreed; }
};

// The expert ends that a receive_any looks at.
class AnyReceiver {
 public:
  AnyReceiver(std::span<Channel> channels, const ReceivePolicy& policy)
      : channels_{channels}, policy_{policy} {}

  Status check();
  Result<AnyBatch> try_once();
  Result<AnyBatch> try_each(bool hopeful_only);
  Result<AnyBatch> wait(Timeout timeout);

 private:
  ChannelImpl& impl(std::size_t index) const { return *ChannelImpl::of(channels_[index]); }
  ExpertEnd& end(std::size_t index) const { return *impl(index).expert; }
  Status timed_out() const;

  std::span<Channel> channels_;
  const ReceivePolicy& policy_;
  Worker* worker_ = nullptr;
};

Status AnyReceiver::check() {
  for (const Channel& channel : channels_) {
    const std::shared_ptr<ChannelImpl>& impl = ChannelImpl::of(channel);
    if (Status status = check_expert(impl, "receive_any"); !status) return status;
    if (worker_ == nullptr) worker_ = &impl->expert->worker();
    if (worker_ != &impl->expert->worker()) {
      return transport::refuse({"receive_any", "channels", "ends of two workers",
                                "ends of one worker", impl->context.rank(),
                                "OpenOptions::expert_worker"});
    }
  }
  if (worker_ != nullptr) return {};
  return transport::refuse({"receive_any", "channels", "0", "at least 1", -1, "receive_any"});
}

// A channel that gives nothing any more is passed over until that is true of all. Then each is
// asked once more: what has come late is still taken.
Result<AnyBatch> AnyReceiver::try_once() {
  bool hope = false;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    if (Status status = impl(i).context.check("receive_any"); !status)
      return cut_off(std::move(status));
    hope |= !impl(i).dried_up;
  }
  Result<AnyBatch> any = try_each(hope);
  return any.code() == Code::closed || any.code() == Code::peer_failed ? try_each(false)
                                                                       : std::move(any);
}

// `again`, or the last one's end where all have come to one.
Result<AnyBatch> AnyReceiver::try_each(bool hopeful_only) {
  Status gone;
  bool hope = false;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    const std::size_t index = (worker_->turn() + i) % channels_.size();
    if (hopeful_only && impl(index).dried_up) continue;
    Result<BatchState*> state = end(index).try_receive(policy_);
    impl(index).dried_up = state.code() == Code::closed || state.code() == Code::peer_failed;
    if (state) {
      worker_->set_turn(index + 1);
      return AnyBatch{index, impl(index).wrap(*state)};
    }
    if (impl(index).dried_up) {
      gone = state.status();
    } else if (state.code() == Code::again) {
      hope = true;
    } else {
      return state.status();
    }
  }
  return hope ? Status{Code::again} : gone;
}

Result<AnyBatch> AnyReceiver::wait(Timeout timeout) {
  const GroupCore& group = *impl(0).group;
  bool first = false;
  for (std::size_t i = 0; i < channels_.size(); ++i) first |= end(i).is_first();
  const Deadline deadline{timeout, first ? group.start_timeout : group.step_timeout};
  Result<AnyBatch> any{Code::again};
  WaitPolicy wait = group.wait;
  const Status status = wait_until(
      *worker_, wait, deadline,
      [&] {
        any = try_once();
        // Sources that have come may not wait longer than they were promised.
        bool waits = false;
        for (std::size_t i = 0; i < channels_.size(); ++i) waits |= end(i).source_waits();
        wait.sleep_limit =
            waits ? std::min(group.wait.sleep_limit, policy_.max_wait) : group.wait.sleep_limit;
        return any.status();
      },
      [&] { end(0).pump(); });
  const Clock::duration waited = Clock::now() - deadline.start();
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    if (!any || any->index == i) end(i).count_wait(waited);
  }
  return status.code() == Code::timeout ? Result<AnyBatch>{timed_out()} : std::move(any);
}

Status AnyReceiver::timed_out() const {
  std::string text;
  std::int32_t peer = -1;
  bool one_peer = true;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    if (!end(i).may_come()) continue;
    one_peer &= text.empty() || peer == end(i).missing_peer();
    peer = end(i).missing_peer();
    text.append(text.empty() ? "receive_any: " : "; ").append(end(i).missing_source());
  }
  text.append(" on rank ").append(std::to_string(impl(0).context.rank()));
  text.append("; see GroupConfig::step_timeout or M2N_STEP_TIMEOUT_MS");
  return {Code::timeout, Scope::operation, std::move(text), one_peer ? peer : -1};
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
  EndDrain<AttentionEnd> attention{impl.attention.get()};
  EndDrain<ExpertEnd> expert{impl.expert.get()};
  auto step = [&]() -> Status {
    if (Status status = impl.context.check("drain"); !status) return status;
    if (impl.attention) impl.attention->reap();
    if (Status status = attention.step(); !status) return status;
    if (Status status = expert.step(); !status) return status;
    return attention.waits() || expert.waits() ? Code::again : Code::ok;
  };
  Worker& worker = impl.attention ? impl.attention->worker() : impl.expert->worker();
  const Deadline deadline{timeout, impl.group->step_timeout};
  const Status status = wait_until(worker, impl.group->wait, deadline, step, [&] {
    if (impl.attention) impl.attention->pump();
    if (impl.expert) impl.expert->pump();
  });
  if (status.code() == Code::timeout)
    return attention.waits() ? attention.end->timed_out_drain() : expert.end->timed_out_drain();
  if (!status) return cut_off(status);
  // Not before both are that far: a call that fails has used nothing that peers have said.
  if (attention.end != nullptr) attention.end->finish_drain();
  if (expert.end != nullptr) expert.end->finish_drain();
  return {};
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
  std::chrono::nanoseconds busy{0};
  auto step = [&]() -> Status {
    if (Status status = impl_->context.check("serve"); !status) return status;
    if (Status served = serve_once(*impl_->group, attention.worker(), busy);
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
  attention.count_wait(Clock::now() - deadline.start() - busy);
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
  const bool first = attention_statistics().operations == 0;
  const Deadline deadline{timeout, first ? impl.group->start_timeout : impl.group->step_timeout};
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
  AnyReceiver receiver{channels, policy};
  if (Status status = receiver.check(); !status) return status;
  Result<AnyBatch> any = receiver.try_once();
  return any.code() == Code::again ? receiver.wait(timeout) : std::move(any);
}

}  // namespace m2n
