// Binding, stolen time and the flag probe.
#include "perf/machine.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace m2n::perf {

std::vector<int> usable_cores() {
  // A launcher may have bound this process to one core already; what the system allows counts.
  cpu_set_t wide;
  CPU_ZERO(&wide);
  for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &wide);
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof wide, &wide);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cores;
  if (::pthread_getaffinity_np(::pthread_self(), sizeof allowed, &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

std::uint32_t core_index(std::uint32_t rank, std::uint32_t attention_ranks,
                         std::uint32_t expert_ranks, std::uint32_t cores) noexcept {
  if (cores == 0) return 0;
  if (attention_ranks + expert_ranks <= cores) return rank;
  return (rank < attention_ranks ? rank : rank - attention_ranks) % cores;
}

bool bind_to(int core) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set) == 0;
}

CpuTicks read_ticks() {
  CpuTicks ticks;
  std::ifstream file{"/proc/stat"};
  std::string label;
  file >> label;
  std::uint64_t value = 0;
  // user nice system idle iowait irq softirq steal
  for (int field = 0; field < 8 && file >> value; ++field) {
    ticks.total += value;
    if (field == 7) ticks.stolen = value;
  }
  return ticks;
}

Status FlagProbe::measure(Board& board, std::optional<double>& one_way_ns) {
  constexpr std::uint32_t rounds = 4;
  constexpr std::uint32_t turns = 100;
  constexpr std::uint64_t give_up_ns = 2'000'000'000;
  one_way_ns.reset();
  if (Status all = board.barrier(); !all) return all;
  if (peer_ != 0 && (rank_ == 0 || rank_ == peer_)) {
    double best = 1e18;
    const std::uint64_t limit = now_ns() + give_up_ns;
    auto& mine = rank_ == 0 ? board.ping() : board.pong();
    auto& theirs = rank_ == 0 ? board.pong() : board.ping();
    for (std::uint32_t round = 0; round < rounds; ++round) {
      const std::uint64_t begin = now_ns();
      for (std::uint32_t turn = 0; turn < turns; ++turn) {
        ++sequence_;
        if (rank_ == 0) mine.store(sequence_, std::memory_order_release);
        for (std::uint32_t spins = 1; theirs.load(std::memory_order_acquire) != sequence_;
             ++spins) {
          if (spins % 4096 != 0) continue;
          ::sched_yield();
          if (board.failed() || now_ns() > limit) return Code::cancelled;
        }
        if (rank_ != 0) mine.store(sequence_, std::memory_order_release);
      }
      best = std::min(best, static_cast<double>(now_ns() - begin) / turns / 2);
    }
    if (rank_ == 0) one_way_ns = best;
  }
  return board.barrier();
}

}  // namespace m2n::perf
