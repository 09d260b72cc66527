#include "collectives/fork_watch.hpp"

#include <pthread.h>

#include "transport/text.hpp"

namespace m2n::collectives {
namespace {

void in_child() noexcept {
  fork_count.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

std::uint64_t watch_forks() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  static_cast<void>(registered);  // without memory for it, children are not told apart
  return fork_count.load(std::memory_order_relaxed);
}

Status used_in_child(std::string_view function, std::int32_t rank) {
  return transport::refuse({function, "process", "a forked child",
                            "the one that created the group; a child creates its own", rank,
                            "Group::create"});
}

}  // namespace m2n::collectives
