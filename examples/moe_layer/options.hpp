// What the example runs: sizes of the model and of the job, and how the ranks are joined.
// Read once by main, then constant on every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "m2n/types.hpp"

namespace moe {

struct Options {
  std::uint32_t attention_ranks = 2;
  std::uint32_t expert_ranks = 2;
  std::uint32_t layers = 4;
  std::uint32_t micro_batches = 8;
  std::uint32_t tokens = 128;  // of one micro-batch at one attention rank
  std::uint32_t hidden = 1024;
  std::uint32_t intermediate = 512;
  std::uint32_t experts = 16;
  std::uint32_t top_k = 4;
  std::uint32_t depth = 2;  // micro-batches in flight
  m2n::Combine combine = m2n::Combine::per_expert;
  m2n::Layout layout = m2n::Layout::packed;
  std::string transport = "shm";  // shm: ranks are processes; inproc: ranks are threads
  std::string trace_path;         // empty = no trace is written
  bool corrupt = false;           // for tests: damage one number before the comparison
  std::uint32_t tile_rows = 0;    // not an option: chosen by main, see gemm.hpp

  std::uint32_t ranks() const noexcept { return attention_ranks + expert_ranks; }
  std::uint32_t operations() const noexcept { return layers * micro_batches; }
  // Tokens of one attention rank over all its micro-batches.
  std::uint32_t rank_tokens() const noexcept { return micro_batches * tokens; }
  // The block placement, as Placement::block defines it.
  std::uint32_t experts_per_rank() const noexcept {
    return (experts + expert_ranks - 1) / expert_ranks;
  }
};

// Fills `options` from the command line. A value when the program has to end at once: its exit
// code.
std::optional<int> parse_options(int argc, char** argv, Options& options);

}  // namespace moe
