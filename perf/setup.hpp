// A run that makes sense: options, model, routing file and launcher brought together.
// Made once, before ranks start; afterwards it is read only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "m2n/config.hpp"
#include "m2n/placement.hpp"
#include "m2n/status.hpp"
#include "perf/options.hpp"
#include "perf/routing.hpp"

namespace m2n::perf {

// What a launcher says, if there is one.
struct World {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::string source;  // "open-mpi", "pmi", "torchrun", "M2N_STORE"
};

struct Setup {
  Options options;
  std::uint32_t attention_ranks = 1;
  std::uint32_t expert_ranks = 1;
  std::uint32_t experts = 1;
  std::uint32_t top_k = 1;
  std::uint32_t hidden = 1;
  DataType wire = DataType::bf16;  // of y and of combine's output
  Routing routing;
  Placement placement;

  std::uint32_t ranks() const noexcept { return attention_ranks + expert_ranks; }
  std::size_t row_bytes() const noexcept { return hidden * size_of(options.dtype); }
  std::size_t wire_row_bytes() const noexcept { return hidden * size_of(wire); }
  // Bytes of an element that is opaque to arithmetic, so y cannot be x.
  bool byte_payload() const noexcept { return size_of(options.dtype) == 1; }
  RoutingShape shape(std::uint32_t tokens) const noexcept {
    return {experts, top_k, tokens, attention_ranks};
  }
  // Tokens of one operation: all, or what --max-tokens says, or, where a batch would not stay in
  // the caches, a piece that does.
  std::uint32_t piece(std::uint32_t tokens) const noexcept;
  // Why a batch cannot be cut, or null.
  const char* whole_because() const noexcept;
  ChannelConfig channel(std::uint32_t tokens) const;
};

// `invalid` names the contradiction. `world` is empty when the tool starts its own ranks.
Result<Setup> settle(const Options& options, const std::optional<World>& world);

// A few lines: what will be run.
std::string describe(const Setup& setup);

}  // namespace m2n::perf
