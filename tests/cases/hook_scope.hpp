// Installs a test hook of the library for a test's duration. Made and destroyed by the test's main
// thread while no rank runs; the function is called by the ranks' threads.
#pragma once

#include <functional>
#include <utility>

#include "collectives/hooks.hpp"

namespace m2n::testing {

using collectives::HookEvent;
using collectives::HookPoint;

class HookScope {
 public:
  explicit HookScope(std::function<void(const HookEvent&)> function)
      : function_{std::move(function)}, hook_{&HookScope::call, this} {
    collectives::test_hook = &hook_;
  }
  ~HookScope() { collectives::test_hook = nullptr; }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  static void call(void* context, const HookEvent& event) {
    static_cast<HookScope*>(context)->function_(event);
  }
  std::function<void(const HookEvent&)> function_;
  collectives::Hook hook_;
};

}  // namespace m2n::testing
