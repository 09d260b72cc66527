// What a baseline module offers. A module is a shared object of its own, built against one MPI and
// loaded by m2n_perf when that MPI has started it; so m2n_perf itself needs no MPI.
// All calls come from the main thread of a rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "m2n/types.hpp"
#include "perf/kernels.hpp"
#include "perf/record.hpp"

namespace m2n::perf {

// Everything a baseline needs to know, in plain data.
struct BaselineShape {
  std::uint32_t rank = 0;
  std::uint32_t attention_ranks = 1;
  std::uint32_t expert_ranks = 1;
  std::uint32_t tokens = 0;
  std::uint32_t top_k = 1;
  std::uint32_t hidden = 0;
  std::size_t row_bytes = 0;
  std::size_t wire_row_bytes = 0;
  DataType wire = DataType::bf16;
  bool grouped = false;                     // copy rows expert-major before they are used
  const std::uint32_t* home = nullptr;      // [experts] expert rank
  const std::uint32_t* local = nullptr;     // [experts] index on it
  std::uint32_t most_local = 1;             // experts of the fullest rank
  const std::byte* byte_outputs = nullptr;  // y rows by the payload's first byte % 8; null: y = x
  bool oversubscribed = false;              // more ranks than cores
  const Kernels* kernels = nullptr;

  bool is_attention() const noexcept { return rank < attention_ranks; }
};

// Called in check rounds for each payload row that an expert rank got.
struct Inspector {
  void (*row)(void* context, std::uint32_t attention, std::uint32_t token, const std::byte* row);
  void* context;
};

class BaselineRounds {
 public:
  virtual ~BaselineRounds() = default;
  virtual void attention(const std::byte* x, const std::int32_t* ids, const float* weights,
                         std::byte* out, Record& record) = 0;
  virtual void expert(const Inspector* inspector, Record& record) = 0;
};

// A way to do a round. Of those that pass messages the fastest one is what the library is compared
// with; those that use shared memory by hand are reported beside.
struct BaselineVariant {
  const char* name;
  bool shared_memory;
};

struct BaselineModule {
  const char* library;  // "Open MPI v4.1.4, ..."
  std::uint32_t variant_count;
  const BaselineVariant* variants;
  // Starts MPI; false if this process's rank or the number of ranks is another one.
  bool (*start)(std::uint32_t rank, std::uint32_t ranks);
  void (*finish)();
  void (*abort)();  // ends all ranks at once, from any state
  BaselineRounds* (*make)(const BaselineShape& shape, std::uint32_t variant);
};

using BaselineEntry = const BaselineModule* (*)();
inline constexpr const char* baseline_entry_name = "m2n_perf_baseline";

}  // namespace m2n::perf
