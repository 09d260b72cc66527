#include "tests/support/reference.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace m2n::reference {
namespace {

// value = (-1)^sign * significand * 2^exponent, of a finite binary format.
struct Format {
  int fraction_bits;
  int bias;
  int exponent_max;  // all ones: infinity and NaN
};
constexpr Format bf16_format{7, 127, 255};
constexpr Format f16_format{10, 15, 31};

float widen(std::uint32_t bits, const Format& format, std::uint32_t sign) {
  const auto fraction = static_cast<int>(bits & ((1u << format.fraction_bits) - 1));
  const auto exponent = static_cast<int>(bits >> format.fraction_bits);
  if (exponent == format.exponent_max) {
    const std::uint32_t payload = static_cast<std::uint32_t>(fraction)
                                  << (23 - format.fraction_bits);
    return std::bit_cast<float>(sign << 31 | 0x7F800000u | payload);
  }
  const int significand = exponent == 0 ? fraction : fraction | 1 << format.fraction_bits;
  const int power = (exponent == 0 ? 1 : exponent) - format.bias - format.fraction_bits;
  const float value = std::ldexp(static_cast<float>(significand), power);
  return sign != 0 ? -value : value;
}

// Rounds the magnitude of a finite, non-zero float to the format, to nearest even.
std::uint32_t narrow(std::uint32_t magnitude, const Format& format) {
  const auto biased = static_cast<int>(magnitude >> 23);
  std::uint64_t significand = magnitude & 0x7FFFFF;
  if (biased != 0) significand |= 0x800000;
  const int exponent = (biased == 0 ? 1 : biased) - 127;  // of bit 23
  int target = exponent + format.bias;                    // biased exponent in the format
  int drop = 23 - format.fraction_bits;
  if (target < 1) {  // denormal there: more bits are dropped
    drop += 1 - target;
    target = 0;
  }
  if (drop > 40) return 0;
  std::uint64_t kept = significand >> drop;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << drop) - 1);
  const std::uint64_t half = std::uint64_t{1} << (drop - 1);
  if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  // A normal number's leading 1 adds one to the exponent field; a carry moves on by itself.
  const std::uint64_t below = target == 0 ? 0 : static_cast<std::uint64_t>(target - 1);
  const std::uint64_t bits = (below << format.fraction_bits) + kept;
  const std::uint64_t infinity = static_cast<std::uint64_t>(format.exponent_max)
                                 << format.fraction_bits;
  return static_cast<std::uint32_t>(bits < infinity ? bits : infinity);
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool is_zero(float weight) {
  return std::bit_cast<std::uint32_t>(weight) << 1 == 0;
}

}  // namespace

float to_float(const std::byte* element, DataType type) {
  if (type == DataType::f32) return load<float>(element);
  const auto bits = load<std::uint16_t>(element);
  const Format& format = type == DataType::bf16 ? bf16_format : f16_format;
  return widen(bits & 0x7FFFu, format, bits >> 15);
}

void from_float(float value, DataType type, std::byte* element) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (type == DataType::f32) {
    std::memcpy(element, &bits, 4);
    return;
  }
  const Format& format = type == DataType::bf16 ? bf16_format : f16_format;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  std::uint32_t out = static_cast<std::uint32_t>(format.exponent_max) << format.fraction_bits;
  if (magnitude > 0x7F800000u) {
    out |= 1u << (format.fraction_bits - 1);
  } else if (magnitude < 0x7F800000u) {
    out = magnitude == 0 ? 0 : narrow(magnitude, format);
  }
  const auto result = static_cast<std::uint16_t>(out | (bits >> 31) << 15);
  std::memcpy(element, &result, 2);
}

bool equal_numbers(const std::byte* a, const std::byte* b, DataType type) {
  if (std::memcmp(a, b, size_of(type)) == 0) return true;
  return std::isnan(to_float(a, type)) && std::isnan(to_float(b, type));
}

std::vector<Route> route(const Job& job, const Inputs& inputs) {
  const ChannelConfig& config = job.config;
  const std::uint64_t tokens = inputs.tokens;
  const std::uint64_t first = tokens * config.shard_index / config.shard_count;
  const std::uint64_t last = tokens * (config.shard_index + 1) / config.shard_count;
  std::map<std::uint32_t, std::uint64_t> copies, copies_done;  // per expert
  std::set<std::pair<std::uint64_t, std::int64_t>> seen;
  for (std::uint64_t i = first * config.top_k; i < last * config.top_k; ++i) {
    if (inputs.ids[i] < 0 || !seen.emplace(i / config.top_k, inputs.ids[i]).second) continue;
    ++copies[static_cast<std::uint32_t>(inputs.ids[i])];
  }
  std::vector<Route> routes;
  for (std::uint64_t t = first; t < last; ++t) {
    std::map<std::uint32_t, std::uint64_t> turn;  // expert -> i of this token's copy
    for (std::uint64_t k = 0; k < config.top_k; ++k) {
      const std::int64_t id = inputs.ids[t * config.top_k + k];
      if (id < 0) continue;
      const auto e = static_cast<std::uint32_t>(id);
      const bool repeated = turn.count(e) != 0;
      if (!repeated) turn[e] = copies_done[e]++;
      for (std::uint32_t p = 0; p < config.placement.parts(e); ++p) {
        const std::span<const Replica> replicas = config.placement.replicas(e, p);
        const Replica& to =
            replicas[(turn[e] * replicas.size() / copies[e] + job.operation + job.attention_rank) %
                     replicas.size()];
        routes.push_back({static_cast<std::uint32_t>(t), e, p, to.rank, to.local_expert,
                          inputs.weights[t * config.top_k + k], repeated});
      }
    }
  }
  return routes;
}

std::vector<std::byte> combine(const Job& job, const Inputs& inputs, const Expert& expert) {
  const ChannelConfig& config = job.config;
  const std::size_t h = config.hidden, wire = size_of(config.wire), out = size_of(config.output);
  const std::size_t row_bytes = h * size_of(config.payload);
  std::vector<std::byte> result(inputs.tokens * h * out), y(h * wire), rounded(wire);
  std::vector<float> sum(h);
  const std::vector<Route> routes = route(job, inputs);
  const std::uint64_t tokens = inputs.tokens;
  auto next = routes.begin();
  for (std::uint64_t t = tokens * config.shard_index / config.shard_count;
       t < tokens * (config.shard_index + 1) / config.shard_count; ++t) {
    std::map<std::uint32_t, std::vector<float>> partial;  // by expert rank; per_expert: only [0]
    for (; next != routes.end() && next->token == t; ++next) {
      std::vector<float>& acc = partial[config.combine == Combine::reduced ? next->rank : 0];
      acc.resize(h, 0.0f);
      // The caller's own weights: y of an expert that was chosen twice holds both of them.
      const bool library = config.weights == Weights::library;
      const float weight = library ? next->weight : 1.0f;
      if (library ? is_zero(weight) : next->repeated) continue;
      expert(inputs.x.data() + t * row_bytes, next->expert, next->part, y.data());
      for (std::size_t i = 0; i < h; ++i) {
        acc[i] = std::fma(weight, to_float(y.data() + i * wire, config.wire), acc[i]);
      }
    }
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (const auto& [rank, acc] : partial) {
      for (std::size_t i = 0; i < h; ++i) {
        if (config.combine == Combine::per_expert) {
          sum[i] = acc[i];
        } else {
          from_float(acc[i], config.wire, rounded.data());
          sum[i] = sum[i] + to_float(rounded.data(), config.wire);
        }
      }
    }
    for (std::size_t i = 0; i < h; ++i) {
      const std::size_t at = (t * h + i) * out;
      if (!inputs.addend.empty()) {
        sum[i] = sum[i] + to_float(inputs.addend.data() + at, config.output);
      }
      from_float(sum[i], config.output, result.data() + at);
    }
  }
  return result;
}

}  // namespace m2n::reference
