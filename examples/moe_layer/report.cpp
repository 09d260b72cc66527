// Anonymous shared memory, made before the ranks start: nothing with a name is left behind.
#include "report.hpp"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>

namespace moe {
namespace {

// Spans of a rank: at most four kinds of work per operation.
std::size_t span_room(const Options& options) {
  return std::size_t{4} * options.operations();
}

std::size_t rank_values(const Options& options) {
  return std::size_t{options.rank_tokens()} * options.hidden;
}

}  // namespace

void RankReport::fail(const char* step, const m2n::Status& status) {
  const std::string text = fmt::format("{}: {}: {}", step, name(status.code()), status.text());
  const std::size_t count = std::min(text.size(), error.size() - 1);
  std::copy_n(text.begin(), count, error.begin());
}

Reports::Reports(const Options& options) : options_{options} {
  spans_offset_ = options.ranks() * sizeof(RankReport);
  outputs_offset_ = spans_offset_ + options.ranks() * span_room(options) * sizeof(Span);
  size_bytes_ = outputs_offset_ + options.attention_ranks * rank_values(options) * sizeof(Bf16);
  void* memory =
      mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  base_ = static_cast<std::byte*>(memory);
  auto* ranks = reinterpret_cast<RankReport*>(base_);
  std::uninitialized_default_construct_n(ranks, options.ranks());
  auto* spans = reinterpret_cast<Span*>(base_ + spans_offset_);
  std::uninitialized_default_construct_n(spans, options.ranks() * span_room(options));
}

Reports::~Reports() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
}

RankReport& Reports::rank(std::uint32_t world_rank) noexcept {
  return reinterpret_cast<RankReport*>(base_)[world_rank];
}

std::span<Span> Reports::spans(std::uint32_t world_rank) noexcept {
  const std::size_t room = span_room(options_);
  return {reinterpret_cast<Span*>(base_ + spans_offset_) + world_rank * room, room};
}

Bf16* Reports::outputs(std::uint32_t attention_rank) noexcept {
  return reinterpret_cast<Bf16*>(base_ + outputs_offset_) + attention_rank * rank_values(options_);
}

std::vector<RankTimeline> Reports::timelines() {
  std::vector<RankTimeline> timelines;
  for (std::uint32_t r = 0; r < options_.ranks(); ++r) {
    const bool attention = r < options_.attention_ranks;
    timelines.push_back({attention ? fmt::format("attention {}", r)
                                   : fmt::format("expert {}", r - options_.attention_ranks),
                         spans(r).first(rank(r).span_count)});
  }
  return timelines;
}

}  // namespace moe
