// What a Group holds. Used by the thread that uses the Group.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "collectives/group_core.hpp"
#include "m2n/group.hpp"

namespace m2n {

struct Group::Impl {
  std::shared_ptr<collectives::GroupCore> core;
  ~Impl();
};

namespace collectives {

// What a call gives, or `exhausted` if not even the text of its failure has found memory.
template <class Call>
auto guarded(Call&& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    return Code::exhausted;
  }
}

// The worker that a call of a Group names, or why there is none. `core` may be null.
Result<Worker*> find_worker(const GroupCore* core, std::string_view function, std::uint32_t worker);

}  // namespace collectives

}  // namespace m2n
