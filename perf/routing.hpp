// Where tokens go: deterministic routings, made before anything is timed. Every rank can make every
// rank's, which is how the expert side and the data check know what must come.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "m2n/status.hpp"
#include "perf/trace.hpp"

namespace m2n::perf {

enum class RoutingKind : std::uint8_t { uniform, zipf, all_to, file };

// uniform: top-k distinct experts, all equally likely.
// zipf: expert popularity ~ 1 / (place + 1)^exponent, places shuffled once; distinct in a token.
// all_to: expert E first, then E + 1, E + 2, ... (modulo experts): everything on one spot.
// file: layer = operation modulo layers; tokens at consecutive positions of the trace.
struct Routing {
  RoutingKind kind = RoutingKind::uniform;
  double exponent = 0;
  std::uint32_t target = 0;
  std::shared_ptr<const Trace> trace;
  std::string text = "uniform";  // as given
};

// Words of --routing. A file is read here. `invalid` names the option and what is allowed.
Result<Routing> parse_routing(const std::string& text);

// What a routing is made for.
struct RoutingShape {
  std::uint32_t experts = 1;
  std::uint32_t top_k = 1;
  std::uint32_t tokens = 0;           // per attention rank
  std::uint32_t attention_ranks = 1;  // M
};

// One attention rank's choices for one operation.
struct Choices {
  std::vector<std::int32_t> ids;  // [tokens, top_k]
  std::vector<float> weights;     // [tokens, top_k], positive
  std::uint32_t layer = 0;
};

// Distinct operations after which a run starts over.
std::uint32_t routing_period(const Routing& routing, const RoutingShape& shape) noexcept;

Choices make_choices(const Routing& routing, const RoutingShape& shape, std::uint32_t attention,
                     std::uint64_t operation);

// A small fixed generator: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_{seed} {}
  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // 0..bound-1
  std::uint32_t below(std::uint32_t bound) noexcept {
    return static_cast<std::uint32_t>((next() >> 32) * bound >> 32);
  }
  // (0, 1)
  double unit() noexcept { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace m2n::perf
