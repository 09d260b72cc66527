// The calls of a Group; what create does is in group_create.cpp, open in channel_open.cpp.
#include "m2n/group.hpp"

#include <string>

#include "collectives/channel_impl.hpp"
#include "collectives/group_core.hpp"
#include "collectives/group_impl.hpp"
#include "transport/text.hpp"

namespace m2n {

Group::Impl::~Impl() {
  while (core && !core->channels.empty()) core->channels.back()->close();
}

Result<Group> Group::create(const GroupConfig& config, std::shared_ptr<Store> store) {
  try {
    Result<std::shared_ptr<collectives::GroupCore>> core =
        collectives::create_group(config, std::move(store));
    if (!core) return core.status();
    Group group;
    group.impl_ = std::make_shared<Impl>();
    group.impl_->core = std::move(*core);
    return group;
  } catch (...) {
    return Code::exhausted;  // the text of a failure has found no memory
  }
}

Result<Channel> Group::open(const ChannelConfig& config, const OpenOptions& options) {
  if (!impl_)
    return transport::refuse(
        {"open", "group", "empty", "one from Group::create", -1, "Group::create"});
  if (!impl_->core->owned()) return collectives::used_in_child("open", impl_->core->rank());
  try {
    Result<std::shared_ptr<ChannelImpl>> impl =
        collectives::open_channel(impl_->core, config, options);
    if (!impl) return impl.status();
    return ChannelImpl::handle(std::move(*impl));
  } catch (...) {
    return Code::exhausted;  // the text of a failure has found no memory
  }
}

Status Group::progress(std::uint32_t worker) {
  if (!impl_)
    return transport::refuse(
        {"progress", "group", "empty", "one from Group::create", -1, "Group::create"});
  collectives::GroupCore& core = *impl_->core;
  if (!core.owned()) return collectives::used_in_child("progress", core.rank());
  if (worker >= core.workers.size()) {
    return transport::refuse({"progress", "worker", std::to_string(worker),
                              "0.." + std::to_string(core.workers.size() - 1), core.rank(),
                              "GroupConfig::workers"});
  }
  core.workers[worker]->pump();
  for (ChannelImpl* channel : core.channels) {
    if (channel->attention && &channel->attention->worker() == core.workers[worker].get()) {
      channel->attention->pump();
      channel->attention->reap();
    }
    if (channel->expert && &channel->expert->worker() == core.workers[worker].get())
      channel->expert->pump();
  }
  return {};
}

Status Group::close() {
  if (!impl_) return {};
  if (!impl_->core->owned()) return collectives::used_in_child("close", impl_->core->rank());
  while (!impl_->core->channels.empty()) impl_->core->channels.back()->close();
  return {};
}

const GroupConfig& Group::config() const noexcept {
  static const GroupConfig none;
  return impl_ ? impl_->core->config : none;
}

std::string Group::transport() const {
  return impl_ ? impl_->core->transport_name : std::string{};
}

}  // namespace m2n
