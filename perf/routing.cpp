// Deterministic routings: uniform, zipf, all-to and traces.
#include "perf/routing.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace m2n::perf {
namespace {

Status refuse(const std::string& value) {
  return {Code::invalid, Scope::operation,
          "m2n_perf: --routing = " + value +
              ", allowed: uniform, zipf:A with 0 <= A <= 10, all-to:E, file:PATH"};
}

std::uint64_t seed_of(std::uint32_t attention, std::uint64_t operation) {
  return (std::uint64_t{attention} << 40) ^ (operation + 1) * 0x2545f4914f6cdd1dULL;
}

void draw_uniform(Random& random, std::vector<std::int32_t>& pool, std::span<std::int32_t> out) {
  const auto experts = static_cast<std::uint32_t>(pool.size());
  for (std::uint32_t k = 0; k < out.size(); ++k) {
    std::swap(pool[k], pool[k + random.below(experts - k)]);
    out[k] = pool[k];
  }
}

// Without replacement: the top-k of log(popularity) + Gumbel noise.
class Zipf {
 public:
  Zipf(std::uint32_t experts, double exponent) : log_popularity_(experts), keys_(experts) {
    std::vector<std::uint32_t> place(experts);
    std::iota(place.begin(), place.end(), 0U);
    Random shuffle{12345};
    for (std::uint32_t i = 0; i + 1 < experts; ++i) {
      std::swap(place[i], place[i + shuffle.below(experts - i)]);
    }
    for (std::uint32_t e = 0; e < experts; ++e) {
      log_popularity_[e] = -exponent * std::log(place[e] + 1.0);
    }
  }
  void draw(Random& random, std::span<std::int32_t> out) {
    for (std::size_t e = 0; e < keys_.size(); ++e) {
      keys_[e] = {log_popularity_[e] - std::log(-std::log(random.unit())),
                  static_cast<std::int32_t>(e)};
    }
    std::partial_sort(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(out.size()),
                      keys_.end(), [](const auto& a, const auto& b) { return a > b; });
    for (std::size_t k = 0; k < out.size(); ++k) out[k] = keys_[k].second;
  }

 private:
  std::vector<double> log_popularity_;
  std::vector<std::pair<double, std::int32_t>> keys_;
};

void draw_weights(Random& random, std::span<float> out) {
  float sum = 0;
  for (float& weight : out) sum += weight = static_cast<float>(0.05 + random.unit());
  for (float& weight : out) weight /= sum;
}

void from_trace(const Trace& trace, const RoutingShape& shape, std::uint32_t attention,
                std::uint64_t operation, Choices& choices) {
  choices.layer = static_cast<std::uint32_t>(operation % trace.layers);
  const std::uint64_t turn = operation / trace.layers;
  const std::uint64_t first = (turn * shape.attention_ranks + attention) * shape.tokens;
  for (std::uint32_t t = 0; t < shape.tokens; ++t) {
    const auto token = static_cast<std::uint32_t>((first + t) % trace.tokens);
    const std::size_t from = trace.entry(choices.layer, token);
    for (std::uint32_t k = 0; k < shape.top_k; ++k) {
      choices.ids[std::size_t{t} * shape.top_k + k] = trace.expert[from + k];
      choices.weights[std::size_t{t} * shape.top_k + k] = trace.weight[from + k];
    }
  }
}

}  // namespace

Result<Routing> parse_routing(const std::string& text) {
  Routing routing;
  routing.text = text;
  const auto colon = text.find(':');
  const std::string word = text.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  const char* const end = rest.data() + rest.size();
  if (word == "uniform" && colon == std::string::npos) return routing;
  if (word == "zipf") {
    routing.kind = RoutingKind::zipf;
    const auto read = std::from_chars(rest.data(), end, routing.exponent);
    if (read.ec != std::errc{} || read.ptr != end || !(routing.exponent >= 0) ||
        routing.exponent > 10) {
      return refuse(text);
    }
    return routing;
  }
  if (word == "all-to") {
    routing.kind = RoutingKind::all_to;
    const auto read = std::from_chars(rest.data(), end, routing.target);
    if (read.ec != std::errc{} || read.ptr != end) return refuse(text);
    return routing;
  }
  if (word == "file" && !rest.empty()) {
    routing.kind = RoutingKind::file;
    auto trace = read_trace(rest);
    if (!trace) {
      return Status{Code::invalid, Scope::operation,
                    "m2n_perf: --routing = " + text + ": " + trace.status().text()};
    }
    routing.trace = std::make_shared<const Trace>(std::move(*trace));
    return routing;
  }
  return refuse(text);
}

std::uint32_t routing_period(const Routing& routing, const RoutingShape& shape) noexcept {
  if (routing.kind == RoutingKind::all_to) return 1;
  // As many as keep the lists well inside the caches, but every layer of a trace at least once.
  const auto fit = std::clamp(32768U / std::max(shape.tokens, 1U), 4U, 32U);
  if (routing.kind != RoutingKind::file) return fit;
  const std::uint32_t layers = routing.trace->layers;
  return std::max(fit / layers, 1U) * layers;
}

Choices make_choices(const Routing& routing, const RoutingShape& shape, std::uint32_t attention,
                     std::uint64_t operation) {
  Choices choices;
  const std::size_t entries = std::size_t{shape.tokens} * shape.top_k;
  choices.ids.resize(entries);
  choices.weights.resize(entries);
  if (routing.kind == RoutingKind::file) {
    from_trace(*routing.trace, shape, attention, operation, choices);
    return choices;
  }
  Random random{seed_of(attention, operation)};
  std::vector<std::int32_t> pool(shape.experts);
  std::iota(pool.begin(), pool.end(), 0);
  Zipf zipf{routing.kind == RoutingKind::zipf ? shape.experts : 0, routing.exponent};
  for (std::uint32_t t = 0; t < shape.tokens; ++t) {
    const std::span<std::int32_t> ids{&choices.ids[std::size_t{t} * shape.top_k], shape.top_k};
    if (routing.kind == RoutingKind::uniform) {
      draw_uniform(random, pool, ids);
    } else if (routing.kind == RoutingKind::zipf) {
      zipf.draw(random, ids);
    } else {
      for (std::uint32_t k = 0; k < shape.top_k; ++k) {
        ids[k] = static_cast<std::int32_t>((routing.target + k) % shape.experts);
      }
    }
    draw_weights(random, {&choices.weights[std::size_t{t} * shape.top_k], shape.top_k});
  }
  return choices;
}

}  // namespace m2n::perf
