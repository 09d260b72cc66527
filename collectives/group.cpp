// The calls of a Group; what create does is in group_create.cpp, open in channel_open.cpp.
#include "m2n/group.hpp"

#include <string>

#include "collectives/channel_impl.hpp"
#include "collectives/group_core.hpp"
#include "collectives/group_impl.hpp"
#include "transport/text.hpp"

namespace m2n {

Result<collectives::Worker*> collectives::find_worker(const GroupCore* core,
                                                      std::string_view function,
                                                      std::uint32_t worker) {
  if (core == nullptr) {
    return transport::refuse(
        {function, "group", "empty", "one from Group::create", -1, "Group::create"});
  }
  if (!core->owned()) return used_in_child(function, core->rank());
  if (worker >= core->workers.size()) {
    return transport::refuse({function, "worker", std::to_string(worker),
                              "0.." + std::to_string(core->workers.size() - 1), core->rank(),
                              "GroupConfig::workers"});
  }
  return core->workers[worker].get();
}

Group::Impl::~Impl() {
  while (core && !core->channels.empty()) core->channels.back()->close();
}

Result<Group> Group::create(const GroupConfig& config, std::shared_ptr<Store> store) {
  return collectives::guarded([&]() -> Result<Group> {
    auto core = collectives::create_group(config, std::move(store));
    if (!core) return core.status();
    Group group;
    group.impl_ = std::make_shared<Impl>();
    group.impl_->core = std::move(*core);
    return group;
  });
}

Result<Channel> Group::open(const ChannelConfig& config, const OpenOptions& options) {
  return collectives::guarded([&]() -> Result<Channel> {
    const auto worker = collectives::find_worker(impl_ ? impl_->core.get() : nullptr, "open", 0);
    if (!worker) return worker.status();
    auto impl = collectives::open_channel(impl_->core, config, options);
    if (!impl) return impl.status();
    return ChannelImpl::handle(std::move(*impl));
  });
}

Status Group::progress(std::uint32_t worker) {
  return collectives::guarded([&]() -> Status {
    const auto found =
        collectives::find_worker(impl_ ? impl_->core.get() : nullptr, "progress", worker);
    if (!found) return found.status();
    (*found)->pump();
    for (ChannelImpl* channel : impl_->core->channels) {
      if (channel->attention && &channel->attention->worker() == *found) {
        channel->attention->pump();
        channel->attention->reap();
      }
      if (channel->expert && &channel->expert->worker() == *found) channel->expert->pump();
    }
    return {};
  });
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
