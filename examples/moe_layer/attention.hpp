// The attention side of a layer: what happens to a token before its experts see it.
// Objects belong to one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "gemm.hpp"
#include "model.hpp"

namespace moe {

// What the gate decided, and what goes to dispatch. [tokens, ...] each.
struct Routed {
  std::vector<Bf16> residual;     // [tokens, hidden], added to the experts' sum by combine
  std::vector<Bf16> x;            // [tokens, hidden], the experts' input
  std::vector<std::int32_t> ids;  // [tokens, top_k], best first
  std::vector<float> weights;     // [tokens, top_k], sum 1
};

// residual = h + rmsnorm(h) projection. A dense product stands for attention: this example is about
// the experts, and needs here only work of a realistic kind that each token does alone.
void attend(const Options& options, const AttentionWeights& weights, const std::vector<Bf16>& h,
            Routed& routed);

// x = rmsnorm(residual); logits = x router; the top_k largest, ties to the smaller id; softmax over
// those.
void gate(const Options& options, const AttentionWeights& weights, Routed& routed);

// The top_k largest of `count` logits into ids, their softmax into weights.
void choose_experts(const float* logits, std::uint32_t count, std::uint32_t top_k,
                    std::int32_t* ids, float* weights);

}  // namespace moe
