// Normalisation, projection and gate. Every token is computed alone, so the bits do not depend on
// the batch.
#include "attention.hpp"

#include <algorithm>
#include <cmath>

namespace moe {
namespace {

// row / sqrt(mean(row^2)), rounded to bf16.
void rms_normalize(const Bf16* row, std::uint32_t count, Bf16* out) {
  float sum = 0.0F;
  for (std::uint32_t i = 0; i < count; ++i) sum = std::fma(to_float(row[i]), to_float(row[i]), sum);
  const float factor = 1.0F / std::sqrt(sum / static_cast<float>(count) + 1e-6F);
  for (std::uint32_t i = 0; i < count; ++i) out[i] = to_bf16(to_float(row[i]) * factor);
}

Matrix widen(const std::vector<Bf16>& values, std::uint32_t columns, std::uint32_t tile_rows) {
  Matrix matrix;
  matrix.reshape(static_cast<std::uint32_t>(values.size() / columns), columns, tile_rows);
  std::transform(values.begin(), values.end(), matrix.row(0), to_float);
  return matrix;
}

std::vector<Bf16> normalize_rows(const std::vector<Bf16>& rows, std::uint32_t columns) {
  std::vector<Bf16> normal(rows.size());
  for (std::size_t i = 0; i < rows.size(); i += columns) {
    rms_normalize(rows.data() + i, columns, normal.data() + i);
  }
  return normal;
}

}  // namespace

void attend(const Options& options, const AttentionWeights& weights, const std::vector<Bf16>& h,
            Routed& routed) {
  const Matrix input = widen(normalize_rows(h, options.hidden), options.hidden, options.tile_rows);
  Matrix product;
  multiply(input, weights.projection.data(), options.hidden, product);
  routed.residual.resize(h.size());
  const float* added = product.row(0);
  for (std::size_t i = 0; i < h.size(); ++i) {
    routed.residual[i] = to_bf16(to_float(h[i]) + added[i]);
  }
}

void gate(const Options& options, const AttentionWeights& weights, Routed& routed) {
  routed.x = normalize_rows(routed.residual, options.hidden);
  const Matrix input = widen(routed.x, options.hidden, options.tile_rows);
  Matrix logits;
  multiply(input, weights.router.data(), options.experts, logits);
  const std::size_t entries = std::size_t{input.rows()} * options.top_k;
  routed.ids.resize(entries);
  routed.weights.resize(entries);
  for (std::uint32_t t = 0; t < input.rows(); ++t) {
    const std::size_t first = std::size_t{t} * options.top_k;
    choose_experts(logits.row(t), options.experts, options.top_k, routed.ids.data() + first,
                   routed.weights.data() + first);
  }
}

void choose_experts(const float* logits, std::uint32_t count, std::uint32_t top_k,
                    std::int32_t* ids, float* weights) {
  for (std::uint32_t k = 0; k < top_k; ++k) {
    std::int32_t best = -1;
    for (std::uint32_t e = 0; e < count; ++e) {
      const auto candidate = static_cast<std::int32_t>(e);
      if (std::find(ids, ids + k, candidate) != ids + k) continue;
      if (best < 0 || logits[e] > logits[best]) best = candidate;
    }
    ids[k] = best;
  }
  float sum = 0.0F;
  for (std::uint32_t k = 0; k < top_k; ++k) {
    weights[k] = std::exp(logits[ids[k]] - logits[ids[0]]);
    sum += weights[k];
  }
  for (std::uint32_t k = 0; k < top_k; ++k) weights[k] /= sum;
}

}  // namespace moe
