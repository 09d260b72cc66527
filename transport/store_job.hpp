// The file store of a job that its launcher started on one host without naming a store. Set-up
// only.
//
// The ranks find the directory through the launcher's identity. In it every rank counts the stores
// it has opened, so that the n-th store of one rank meets the n-th of the others even if some rank
// has already gone on (several programs in one launch, several groups in one program), and a store
// never sees the keys of the one before. The last rank to drop the last store removes the
// directory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "m2n/status.hpp"
#include "m2n/store.hpp"

namespace m2n::transport {

// `directory` must be absolute. Refuses one that other users may write.
Result<std::shared_ptr<Store>> open_job_store(const std::string& directory, std::uint32_t rank,
                                              std::uint32_t world_size);

}  // namespace m2n::transport
