// Weights and inputs from a counter-based generator. Stateless, any thread.
#include "model.hpp"

#include <cmath>

namespace moe {
namespace {

enum class Tensor : std::uint64_t { gate, up, down, projection, router, tokens };

std::uint64_t stream_of(Tensor tensor, std::uint32_t layer, std::uint32_t index) {
  const std::uint64_t place = (std::uint64_t{layer} << 32) | index;
  return random_bits(random_bits(0x6d326e, static_cast<std::uint64_t>(tensor)), place);
}

// Uniform in [-scale, scale), four numbers from each 64 random bits.
template <class Write>
void fill(std::uint64_t stream, std::size_t count, float scale, Write write) {
  for (std::size_t i = 0; i < count; i += 4) {
    std::uint64_t bits = random_bits(stream, i);
    for (std::size_t j = i; j < i + 4 && j < count; ++j, bits >>= 16) {
      const auto value = static_cast<std::int16_t>(bits & 0xffffu);
      write(j, to_bf16(static_cast<float>(value) * (scale / 32768.0F)));
    }
  }
}

// [inner, columns] with a gain of about one: the variance of a uniform number is scale^2 / 3.
std::vector<float> make_matrix(std::uint64_t stream, std::uint32_t inner, std::uint32_t columns) {
  std::vector<float> values(std::size_t{inner} * columns);
  fill(stream, values.size(), std::sqrt(3.0F / static_cast<float>(inner)),
       [&values](std::size_t i, Bf16 value) { values[i] = to_float(value); });
  return values;
}

}  // namespace

ExpertWeights make_expert(const Options& options, std::uint32_t layer, std::uint32_t expert) {
  const std::uint32_t hidden = options.hidden;
  const std::uint32_t inner = options.intermediate;
  return {make_matrix(stream_of(Tensor::gate, layer, expert), hidden, inner),
          make_matrix(stream_of(Tensor::up, layer, expert), hidden, inner),
          make_matrix(stream_of(Tensor::down, layer, expert), inner, hidden)};
}

AttentionWeights make_attention(const Options& options, std::uint32_t layer) {
  return {make_matrix(stream_of(Tensor::projection, layer, 0), options.hidden, options.hidden),
          make_matrix(stream_of(Tensor::router, layer, 0), options.hidden, options.experts)};
}

std::vector<Bf16> make_tokens(const Options& options, std::uint32_t attention_rank,
                              std::uint32_t micro_batch) {
  std::vector<Bf16> values(std::size_t{options.tokens} * options.hidden);
  fill(stream_of(Tensor::tokens, attention_rank, micro_batch), values.size(), 1.7F,
       [&values](std::size_t i, Bf16 value) { values[i] = value; });
  return values;
}

}  // namespace moe
