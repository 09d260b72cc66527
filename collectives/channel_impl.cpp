#include "collectives/channel_impl.hpp"

#include <algorithm>
#include <utility>

#include "collectives/hooks.hpp"
#include "collectives/wait.hpp"

namespace m2n {

using collectives::ChannelState;

// An aborted channel stays aborted; its peers hear that nothing more comes, as after a close.
void ChannelImpl::close() {
  if (std::exchange(left, true)) return;
  ChannelState open = ChannelState::open;
  context.state.compare_exchange_strong(open, ChannelState::closed);
  collectives::at({collectives::HookPoint::pre_close, group->config.world_rank});
  if (attention && group->owned()) attention->announce_close();
  if (expert && group->owned()) expert->announce_close();
  std::erase(group->channels, this);
}

void ChannelImpl::abort() noexcept {
  if (!group->owned()) return;
  ChannelState open = ChannelState::open;
  if (!context.state.compare_exchange_strong(open, ChannelState::aborted)) return;
  if (attention) attention->worker().transport().doorbell().ring_sleepers();
  if (expert) expert->worker().transport().doorbell().ring_sleepers();
}

ChannelImpl::~ChannelImpl() {
  close();
}

namespace collectives {

Status serve_once(GroupCore& group, Worker& worker, std::chrono::nanoseconds& busy) {
  const std::size_t count = group.channels.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = (worker.turn() + i) % count;
    ChannelImpl* impl = group.channels[index];
    if (!impl->expert || &impl->expert->worker() != &worker || !impl->expert_function) continue;
    if (impl->dried_up || !impl->is_open()) continue;
    Result<BatchState*> state = impl->expert->try_receive({});
    if (state.code() == Code::again) continue;
    // The end of another channel shows there, not here.
    impl->dried_up = state.code() == Code::closed || state.code() == Code::peer_failed;
    if (impl->dried_up) continue;
    if (!state) return state.status();
    worker.set_turn(index + 1);
    Batch batch = impl->wrap(*state);
    Channel channel = ChannelImpl::handle(impl->shared_from_this());
    const Clock::time_point start = Clock::now();
    Status status = impl->expert_function(channel, batch);
    busy += Clock::now() - start;
    return impl->is_open() ? status : Status{Code::again};
  }
  return Code::again;
}

}  // namespace collectives
}  // namespace m2n
