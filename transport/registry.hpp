// The built-in transports by name, and a place where tests can wrap what open_transport returns.
// Used at set-up only; may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "transport/transport.hpp"

namespace m2n::transport {

// "inproc", "shm".
std::span<const std::string_view> transport_names() noexcept;

// Every transport that is opened from now on passes through it; an empty one takes it away.
using OpenHook =
    std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>, const Options&)>;
void set_open_hook(OpenHook hook);

}  // namespace m2n::transport
