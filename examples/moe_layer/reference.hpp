// The same layers in one process, without m2n: every token of every rank and micro-batch at once,
// so in other batches than the ranks see. Main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attention.hpp"
#include "options.hpp"

namespace moe {

// What one token's experts computed.
struct TokenOutputs {
  const std::int32_t* ids = nullptr;  // [top_k]
  const float* weights = nullptr;     // [top_k]
  const Bf16* y = nullptr;            // [top_k, hidden]
  const Bf16* residual = nullptr;     // [hidden]
};

// out[hidden] as m2n promises it: per_expert adds in k order and rounds once; reduced rounds one
// partial sum per expert rank to the wire type and adds those in rank order. The residual is added
// last.
void combine_token(const Options& options, const TokenOutputs& token, Bf16* out);

// [attention ranks, micro-batches, tokens, hidden] after the last layer. `progress` is told how
// many layers are done.
std::vector<Bf16> run_reference(const Options& options,
                                const std::function<void(std::uint32_t)>& progress);

struct Difference {
  std::uint64_t tokens = 0;  // that differ in at least one bit
  std::uint64_t first = 0;   // index of the first of them
};
Difference compare(const Options& options, const std::vector<Bf16>& expected, const Bf16* actual);

}  // namespace moe
