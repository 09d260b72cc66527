// The calls of a Group for ranks that sleep in an event loop of their own.
#include "collectives/group_impl.hpp"
#include "collectives/worker.hpp"
#include "m2n/group.hpp"

namespace m2n {

Result<int> Group::event_descriptor(std::uint32_t worker) {
  return collectives::guarded([&]() -> Result<int> {
    const auto found =
        collectives::find_worker(impl_ ? impl_->core.get() : nullptr, "event_descriptor", worker);
    if (!found) return found.status();
    return (*found)->transport().event_descriptor();
  });
}

Status Group::arm_events(std::uint32_t worker) {
  return collectives::guarded([&]() -> Status {
    const auto found =
        collectives::find_worker(impl_ ? impl_->core.get() : nullptr, "arm_events", worker);
    if (!found) return found.status();
    transport::Transport& transport = (*found)->transport();
    if (Status status = transport.arm_events(impl_->core->wait.sleep_limit); !status) return status;
    // Messages and deaths count from here on: a try_ form looks at them when it has found nothing,
    // and says what they mean in the next call only.
    if (Status status = progress(worker); !status) return status;
    // Only this rank's own calls move those on: no sleep.
    if ((*found)->has_pending()) transport.doorbell().ring();
    return {};
  });
}

}  // namespace m2n
