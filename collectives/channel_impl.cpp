#include "collectives/channel_impl.hpp"

#include <algorithm>

#include "collectives/hooks.hpp"

namespace m2n {

using collectives::ChannelState;

void ChannelImpl::close() {
  ChannelState open = ChannelState::open;
  if (!context.state.compare_exchange_strong(open, ChannelState::closed)) return;
  collectives::at({collectives::HookPoint::pre_close, group->config.world_rank});
  if (attention && group->owned()) attention->announce_close();
  if (expert && group->owned()) expert->announce_close();
  std::erase(group->channels, this);
}

void ChannelImpl::abort() noexcept {
  ChannelState open = ChannelState::open;
  if (!context.state.compare_exchange_strong(open, ChannelState::aborted)) return;
  if (attention) attention->worker().transport().doorbell().ring_sleepers();
  if (expert) expert->worker().transport().doorbell().ring_sleepers();
}

ChannelImpl::~ChannelImpl() {
  close();
  if (context.state.load(std::memory_order_acquire) == ChannelState::aborted && group->owned()) {
    // No call is open any more: now the peers may hear of it.
    if (attention) attention->announce_close();
    if (expert) expert->announce_close();
  }
  std::erase(group->channels, this);
}

namespace collectives {

Status serve_once(GroupCore& group, Worker& worker) {
  for (ChannelImpl* impl : group.channels) {
    if (!impl->expert || &impl->expert->worker() != &worker || !impl->expert_function) continue;
    Result<BatchState*> state = impl->expert->try_receive({});
    if (state.code() == Code::again) continue;
    if (!state) return state.status();
    Batch batch = impl->wrap(*state);
    Channel channel = ChannelImpl::handle(impl->shared_from_this());
    return impl->expert_function(channel, batch);
  }
  return Code::again;
}

}  // namespace collectives
}  // namespace m2n
