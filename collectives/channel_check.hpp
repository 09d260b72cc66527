// What every public verb checks before it goes to an end: the handle, the role, the state, the
// ticket or batch. Pure but for the texts they make.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "collectives/channel_impl.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

inline Status no_channel(std::string_view function) {
  return transport::refuse(
      {function, "channel", "empty", "one from Group::open", -1, "Group::open"});
}

inline Status no_role(const ChannelImpl& impl, std::string_view function, const char* role) {
  return transport::refuse({function, "role", std::string{"not "} + role, role, impl.context.rank(),
                            "GroupConfig::attention_rank and expert_rank"});
}

inline Status check_attention(const std::shared_ptr<ChannelImpl>& impl, std::string_view function) {
  if (!impl) return no_channel(function);
  if (!impl->attention) return no_role(*impl, function, "attention");
  return impl->context.check(function);
}

inline Status check_expert(const std::shared_ptr<ChannelImpl>& impl, std::string_view function) {
  if (!impl) return no_channel(function);
  if (!impl->expert) return no_role(*impl, function, "expert");
  return impl->context.check(function);
}

// A ticket or batch after close belongs to an operation that was cut off.
inline Status cut_off(Status status) {
  if (status.code() != Code::closed || status.peer() >= 0) return status;
  return {Code::cancelled, Scope::operation, status.text()};
}

inline Status check_ticket(const std::shared_ptr<ChannelImpl>& impl, const Ticket& ticket,
                           std::string_view function) {
  if (Status status = check_attention(impl, function); !status) return cut_off(std::move(status));
  if (ChannelImpl::of(ticket) == impl.get()) return {};
  return transport::refuse({function, "ticket", ticket ? "of another channel" : "empty or used up",
                            "a ticket of this channel that has not been combined",
                            impl->context.rank(), "Channel::dispatch"});
}

inline Status check_batch(const std::shared_ptr<ChannelImpl>& impl, const Batch& batch,
                          std::string_view function) {
  if (Status status = check_expert(impl, function); !status) return cut_off(std::move(status));
  if (ChannelImpl::of(batch) == impl.get()) return {};
  return transport::refuse({function, "batch", batch ? "of another channel" : "empty or used up",
                            "a batch of this channel that has not been replied to",
                            impl->context.rank(), "Channel::receive"});
}

// What uses a ticket up: everything but a wait that may still succeed and a refused argument.
inline bool is_final(const Status& status) {
  return status || status.code() == Code::unavailable;
}

}  // namespace m2n::collectives
