// Who this process is, from the launcher's environment, and the store that goes with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "m2n/export.hpp"
#include "m2n/status.hpp"
#include "m2n/store.hpp"

namespace m2n {

struct Launch {
  std::uint32_t world_rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;  // among the ranks of this host
  std::string store;             // "tcp://host:port" or "file:DIR"
  std::string source;            // "M2N_STORE", "torchrun", "open-mpi", "pmi": for messages
};

// Explicit M2N_STORE first, then RANK/WORLD_SIZE/MASTER_ADDR/MASTER_PORT, then Open MPI and PMI
// variables. Variables that contradict each other are `invalid` and named; none at all is
// `unavailable`.
M2N_EXPORT Result<Launch> detect_launch();

// The store a Launch names; rank 0 of a tcp store serves it.
M2N_EXPORT Result<std::shared_ptr<Store>> open_store(const Launch& launch);

}  // namespace m2n
