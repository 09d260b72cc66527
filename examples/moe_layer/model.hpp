// The weights of the layers. Every value is a bf16 number held as f32, made from (seed, layer,
// expert) alone, so that each rank makes just what it owns and the reference makes the same.
#pragma once

#include <cstdint>
#include <vector>

#include "numbers.hpp"
#include "options.hpp"

namespace moe {

// A SwiGLU expert: y = (silu(x gate) * (x up)) down.
struct ExpertWeights {
  std::vector<float> gate;  // [hidden, intermediate]
  std::vector<float> up;    // [hidden, intermediate]
  std::vector<float> down;  // [intermediate, hidden]
};

struct AttentionWeights {
  std::vector<float> projection;  // [hidden, hidden], stands for the attention itself
  std::vector<float> router;      // [hidden, experts]
};

ExpertWeights make_expert(const Options& options, std::uint32_t layer, std::uint32_t expert);
AttentionWeights make_attention(const Options& options, std::uint32_t layer);

// The hidden states that enter layer 0: [tokens, hidden] of one micro-batch of one attention rank.
std::vector<Bf16> make_tokens(const Options& options, std::uint32_t attention_rank,
                              std::uint32_t micro_batch);

}  // namespace moe
