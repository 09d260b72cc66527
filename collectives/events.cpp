// The calls of a Group for ranks that sleep in an event loop of their own.
#include <string>

#include "collectives/fork_watch.hpp"
#include "collectives/group_impl.hpp"
#include "collectives/worker.hpp"
#include "m2n/group.hpp"
#include "transport/text.hpp"

namespace m2n {
namespace {

Result<collectives::Worker*> find_worker(const collectives::GroupCore* core,
                                         std::string_view function, std::uint32_t worker) {
  if (core == nullptr) {
    return transport::refuse(
        {function, "group", "empty", "one from Group::create", -1, "Group::create"});
  }
  if (!core->owned()) return collectives::used_in_child(function, core->rank());
  if (worker >= core->workers.size()) {
    return transport::refuse({function, "worker", std::to_string(worker),
                              "0.." + std::to_string(core->workers.size() - 1), core->rank(),
                              "GroupConfig::workers"});
  }
  return core->workers[worker].get();
}

}  // namespace

Result<int> Group::event_descriptor(std::uint32_t worker) {
  try {
    const auto found = find_worker(impl_ ? impl_->core.get() : nullptr, "event_descriptor", worker);
    if (!found) return found.status();
    return (*found)->transport().event_descriptor();
  } catch (...) {
    return Code::exhausted;  // not even the text of the failure has found memory
  }
}

Status Group::arm_events(std::uint32_t worker) {
  const auto found = find_worker(impl_ ? impl_->core.get() : nullptr, "arm_events", worker);
  if (!found) return found.status();
  transport::Transport& transport = (*found)->transport();
  if (Status status = transport.arm_events(impl_->core->wait.sleep_limit); !status) return status;
  // Messages and deaths count from here on: a try_ form looks at them when it has found nothing,
  // and says what they mean in the next call only.
  if (Status status = progress(worker); !status) return status;
  // Only this rank's own calls move those on: no sleep.
  if ((*found)->has_pending()) transport.doorbell().ring();
  return {};
}

}  // namespace m2n
