// Transport between processes (or threads) of one host through shared files without names.
#pragma once

#include <memory>

#include "transport/shm_segment.hpp"
#include "transport/transport.hpp"

namespace m2n::transport {

Result<std::unique_ptr<Transport>> open_shm(const Options& options, const ShmSettings& settings);

}  // namespace m2n::transport
