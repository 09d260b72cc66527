// Single-process layers and the comparison. Written from the number rules in the documentation, not
// from the library's code.
#include "reference.hpp"

#include <cmath>
#include <cstring>

#include "expert.hpp"

namespace moe {
namespace {

// acc[h] = fma(w, y[h], acc[h])
void accumulate(const Options& options, float weight, const Bf16* y, float* acc) {
  for (std::uint32_t h = 0; h < options.hidden; ++h) {
    acc[h] = std::fma(weight, to_float(y[h]), acc[h]);
  }
}

// The y rows of all (token, k), [tokens, top_k, hidden]: expert after expert over all its tokens.
std::vector<Bf16> run_experts(const Options& options, std::uint32_t layer, const Routed& routed) {
  const std::size_t hidden = options.hidden;
  std::vector<Bf16> y(routed.ids.size() * hidden);
  Expert expert{options};
  std::vector<std::size_t> entries;
  std::vector<Bf16> gathered;
  std::vector<Bf16> out;
  for (std::uint32_t e = 0; e < options.experts; ++e) {
    entries.clear();
    gathered.clear();
    for (std::size_t i = 0; i < routed.ids.size(); ++i) {
      if (routed.ids[i] != static_cast<std::int32_t>(e)) continue;
      entries.push_back(i);
      const Bf16* x = routed.x.data() + i / options.top_k * hidden;
      gathered.insert(gathered.end(), x, x + hidden);
    }
    if (entries.empty()) continue;
    out.resize(gathered.size());
    expert.run(make_expert(options, layer, e),
               {reinterpret_cast<const std::byte*>(gathered.data()), hidden * sizeof(Bf16),
                static_cast<std::uint32_t>(entries.size())},
               out.data());
    for (std::size_t j = 0; j < entries.size(); ++j) {
      std::memcpy(y.data() + entries[j] * hidden, out.data() + j * hidden, hidden * sizeof(Bf16));
    }
  }
  return y;
}

void sum_reduced(const Options& options, const TokenOutputs& token, std::vector<float>& acc) {
  std::vector<float> partial(options.hidden);
  for (std::uint32_t rank = 0; rank < options.expert_ranks; ++rank) {
    bool used = false;
    std::fill(partial.begin(), partial.end(), 0.0F);
    for (std::uint32_t k = 0; k < options.top_k; ++k) {
      const auto expert = static_cast<std::uint32_t>(token.ids[k]);
      if (expert / options.experts_per_rank() != rank || token.weights[k] == 0.0F) continue;
      accumulate(options, token.weights[k], token.y + std::size_t{k} * options.hidden,
                 partial.data());
      used = true;
    }
    if (!used) continue;
    for (std::uint32_t h = 0; h < options.hidden; ++h) acc[h] += to_float(to_bf16(partial[h]));
  }
}

}  // namespace

void combine_token(const Options& options, const TokenOutputs& token, Bf16* out) {
  std::vector<float> acc(options.hidden, 0.0F);
  if (options.combine == m2n::Combine::reduced) {
    sum_reduced(options, token, acc);
  } else {
    for (std::uint32_t k = 0; k < options.top_k; ++k) {
      if (token.weights[k] == 0.0F) continue;
      accumulate(options, token.weights[k], token.y + std::size_t{k} * options.hidden, acc.data());
    }
  }
  for (std::uint32_t h = 0; h < options.hidden; ++h) {
    out[h] = to_bf16(acc[h] + to_float(token.residual[h]));
  }
}

std::vector<Bf16> run_reference(const Options& options,
                                const std::function<void(std::uint32_t)>& progress) {
  const std::size_t hidden = options.hidden;
  std::vector<Bf16> h;
  for (std::uint32_t rank = 0; rank < options.attention_ranks; ++rank) {
    for (std::uint32_t batch = 0; batch < options.micro_batches; ++batch) {
      const std::vector<Bf16> tokens = make_tokens(options, rank, batch);
      h.insert(h.end(), tokens.begin(), tokens.end());
    }
  }
  Routed routed;
  for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
    const AttentionWeights weights = make_attention(options, layer);
    attend(options, weights, h, routed);
    gate(options, weights, routed);
    const std::vector<Bf16> y = run_experts(options, layer, routed);
    for (std::size_t t = 0; t < h.size() / hidden; ++t) {
      const std::size_t entry = t * options.top_k;
      combine_token(options,
                    {routed.ids.data() + entry, routed.weights.data() + entry,
                     y.data() + entry * hidden, routed.residual.data() + t * hidden},
                    h.data() + t * hidden);
    }
    progress(layer + 1);
  }
  return h;
}

Difference compare(const Options& options, const std::vector<Bf16>& expected, const Bf16* actual) {
  Difference difference;
  for (std::size_t t = 0; t < expected.size() / options.hidden; ++t) {
    const std::size_t first = t * options.hidden;
    if (std::memcmp(expected.data() + first, actual + first, options.hidden * sizeof(Bf16)) == 0) {
      continue;
    }
    if (difference.tokens == 0) difference.first = t;
    ++difference.tokens;
  }
  return difference;
}

}  // namespace moe
