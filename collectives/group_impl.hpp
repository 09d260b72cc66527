// What a Group holds. Used by the thread that uses the Group.
#pragma once

#include <memory>

#include "collectives/group_core.hpp"
#include "m2n/group.hpp"

namespace m2n {

struct Group::Impl {
  std::shared_ptr<collectives::GroupCore> core;
  ~Impl();
};

}  // namespace m2n
