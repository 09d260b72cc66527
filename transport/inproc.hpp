// Transport between ranks that are threads of one process: memory is heap, peers are found in a
// registry of the process. The registry is locked at set-up and tear-down only.
#pragma once

#include <memory>

#include "transport/transport.hpp"

namespace m2n::transport {

Result<std::unique_ptr<Transport>> open_inproc(const Options& options);

}  // namespace m2n::transport
