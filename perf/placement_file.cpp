// Placement maps from JSON.
#include "perf/placement_file.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace m2n::perf {
namespace {

using nlohmann::json;

Status bad(const std::string& what) {
  return {Code::invalid, Scope::operation, "m2n_perf: --placement: " + what};
}

std::optional<std::uint32_t> small(const json& value) {
  if (!value.is_number_unsigned()) return {};
  const auto number = value.get<std::uint64_t>();
  if (number >= (1U << 20)) return {};
  return static_cast<std::uint32_t>(number);
}

std::optional<Replica> replica(const json& value) {
  if (!value.is_array() || value.size() != 2) return {};
  const auto rank = small(value[0]);
  const auto local = small(value[1]);
  if (!rank || !local) return {};
  return Replica{*rank, *local};
}

std::optional<ExpertParts> parts_of(const json& value) {
  if (!value.is_array() || value.empty()) return {};
  ExpertParts expert;
  for (const json& part : value) {
    if (!part.is_array() || part.empty()) return {};
    auto& replicas = expert.parts.emplace_back();
    for (const json& copy : part) {
      const auto one = replica(copy);
      if (!one) return {};
      replicas.push_back(*one);
    }
  }
  return expert;
}

}  // namespace

Result<Placement> parse_placement(const std::string& text, std::uint32_t expert_ranks) {
  const json root = json::parse(text, nullptr, false);
  if (!root.is_object() || !root.contains("experts") || !root["experts"].is_array() ||
      root["experts"].empty()) {
    return bad("allowed: an object with a list \"experts\"");
  }
  std::vector<ExpertParts> experts;
  std::vector<std::uint32_t> next(expert_ranks);
  for (const json& value : root["experts"]) {
    const std::string where = "expert " + std::to_string(experts.size());
    if (const auto rank = small(value)) {
      if (*rank >= expert_ranks) {
        return bad(where + ": rank = " + std::to_string(*rank) + ", allowed: 0.." +
                   std::to_string(expert_ranks - 1));
      }
      experts.push_back({{{Replica{*rank, next[*rank]++}}}});
    } else if (auto parts = parts_of(value)) {
      experts.push_back(std::move(*parts));
    } else {
      return bad(where + ": allowed: a rank, or parts of [rank, local expert] replicas");
    }
  }
  auto placement = Placement::make(expert_ranks, experts);
  if (!placement) return bad(placement.status().text());
  return placement;
}

Result<Placement> read_placement(const std::string& text, std::uint32_t experts,
                                 std::uint32_t expert_ranks) {
  if (text == "block") return Placement::block(experts, expert_ranks);
  if (text.rfind("file:", 0) != 0) return bad(text + ", allowed: block, file:PATH");
  std::ifstream file{text.substr(5), std::ios::binary};
  if (!file) return bad("cannot open " + text.substr(5));
  const std::string content{std::istreambuf_iterator<char>{file}, {}};
  auto placement = parse_placement(content, expert_ranks);
  if (placement && placement->experts() != experts) {
    return bad("the file has " + std::to_string(placement->experts()) + " experts, the run has " +
               std::to_string(experts) + " (--experts)");
  }
  return placement;
}

}  // namespace m2n::perf
