// The module: what m2n_perf finds when it has loaded it.
#include <mpi.h>

#include <iterator>

#include "perf/baseline/rounds.hpp"

#define M2N_TEXT_(x) #x
#define M2N_TEXT(x) M2N_TEXT_(x)

namespace m2n::perf::mpi {
namespace {

constexpr BaselineVariant variants[] = {{"alltoallv", false},
                                        {"messages", false},
                                        {"messages in pieces", false},
                                        {"shared windows", true}};

bool start(std::uint32_t rank, std::uint32_t ranks) {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    return false;
  }
  int my_rank = -1;
  int all = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &all);
  return my_rank == static_cast<int>(rank) && all == static_cast<int>(ranks);
}

void finish() {
  MPI_Finalize();
}

void abort() {
  MPI_Abort(MPI_COMM_WORLD, 1);
}

BaselineRounds* make(const BaselineShape& shape, std::uint32_t variant) {
  constexpr std::size_t any_size = std::size_t{1} << 31;
  constexpr std::size_t piece_bytes = std::size_t{128} << 10;
  if (variant == 0) return make_all_to_all(shape);
  if (variant == 3) return make_shared_windows(shape);
  return make_messages(shape, variant == 1 ? any_size : piece_bytes);
}

const char* library_text() {
#if defined(OPEN_MPI)
  return "Open MPI " M2N_TEXT(OMPI_MAJOR_VERSION) "." M2N_TEXT(OMPI_MINOR_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return "MPI";
#endif
}

}  // namespace
}  // namespace m2n::perf::mpi

extern "C" __attribute__((visibility("default"))) const m2n::perf::BaselineModule*
m2n_perf_baseline() {
  using namespace m2n::perf;
  static const BaselineModule module{mpi::library_text(),
                                     std::size(mpi::variants),
                                     mpi::variants,
                                     mpi::start,
                                     mpi::finish,
                                     mpi::abort,
                                     mpi::make};
  return &module;
}
