// The ways to do a round with MPI, one source file each. Built by one MPI's compiler wrapper, only
// into that MPI's module.
#pragma once

#include <cstddef>

#include "perf/baseline/baseline.hpp"

namespace m2n::perf::mpi {

// Counts by MPI_Alltoall, one packed MPI_Alltoallv there, one back with known counts.
BaselineRounds* make_all_to_all(const BaselineShape& shape);

// Point to point, receives posted ahead, replies of at most `piece_bytes` each.
BaselineRounds* make_messages(const BaselineShape& shape, std::size_t piece_bytes);

// Plain stores into memory of MPI_Win_allocate_shared, and flags in it: not message passing.
BaselineRounds* make_shared_windows(const BaselineShape& shape);

inline int to_int(std::size_t bytes) {
  return static_cast<int>(bytes);
}

}  // namespace m2n::perf::mpi
