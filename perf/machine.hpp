// What the machine does to a run: cores, binding, stolen time, and how long a flag takes from core
// to core. Each rank calls these for itself.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "perf/board.hpp"
#include "perf/setup.hpp"

namespace m2n::perf {

// Cores that this process may be bound to. May widen the calling thread's affinity to all of them.
std::vector<int> usable_cores();

// Index into usable_cores for a rank: one core each when there are enough, else attention rank a
// and expert rank a share one.
std::uint32_t core_index(std::uint32_t rank, std::uint32_t attention_ranks,
                         std::uint32_t expert_ranks, std::uint32_t cores) noexcept;

// Binds the calling thread; false if the system refuses.
bool bind_to(int core) noexcept;

// Clock ticks since boot: stolen by the hypervisor, and all.
struct CpuTicks {
  std::uint64_t stolen = 0;
  std::uint64_t total = 0;
};
CpuTicks read_ticks();

// One-way time of a flag between the cores of rank 0 and of `peer`, nanoseconds; all ranks call it,
// two of them take part. Nothing if peer == 0 (no two cores to measure).
class FlagProbe {
 public:
  FlagProbe(std::uint32_t rank, std::uint32_t peer) : rank_{rank}, peer_{peer} {}
  // The result is known at rank 0.
  Status measure(Board& board, std::optional<double>& one_way_ns);

 private:
  std::uint32_t rank_;
  std::uint32_t peer_;
  std::uint32_t sequence_ = 0;
};

}  // namespace m2n::perf
