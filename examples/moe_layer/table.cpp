// Sums spans into lines. A rank's total runs from its first span's begin to its last one's end, so
// "other" is the time outside of all kinds of work.
#include "table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <vector>

namespace moe {
namespace {

struct Column {
  Work work;
  const char* title;
};
constexpr std::array<Column, 4> attention_columns{{{Work::attention, "attention"},
                                                   {Work::gate, "gate"},
                                                   {Work::dispatch, "dispatch"},
                                                   {Work::combine, "combine+wait"}}};
constexpr std::array<Column, 3> expert_columns{
    {{Work::receive, "receive wait"}, {Work::experts, "experts"}, {Work::reply, "reply"}}};

std::string cell(std::int64_t ns, std::int64_t total_ns) {
  const double share =
      total_ns > 0 ? 100.0 * static_cast<double>(ns) / static_cast<double>(total_ns) : 0.0;
  return fmt::format("{:>9.1f} {:>3.0f}%", static_cast<double>(ns) / 1e6, share);
}

void add_header(std::string& text, std::span<const Column> columns) {
  text += fmt::format("{:<13}", "rank");
  for (const Column& column : columns) text += fmt::format("{:>14}", column.title);
  text += fmt::format("{:>14}{:>12}\n", "other", "total ms");
}

void add_line(std::string& text, const RankTimeline& rank, std::span<const Column> columns) {
  std::array<std::int64_t, work_kinds> sums{};
  std::int64_t total_ns = 0;
  std::int64_t named_ns = 0;
  for (const Span& span : rank.spans) {
    sums[static_cast<std::uint32_t>(span.work)] += span.end_ns - span.begin_ns;
    named_ns += span.end_ns - span.begin_ns;
  }
  if (!rank.spans.empty()) total_ns = rank.spans.back().end_ns - rank.spans.front().begin_ns;
  text += fmt::format("{:<13}", rank.name);
  for (const Column& column : columns) {
    text += cell(sums[static_cast<std::uint32_t>(column.work)], total_ns);
  }
  text += cell(total_ns - named_ns, total_ns);
  text += fmt::format("{:>12.1f}\n", static_cast<double>(total_ns) / 1e6);
}

}  // namespace

std::string time_table(std::span<const RankTimeline> ranks, std::size_t attention_ranks) {
  std::string text;
  add_header(text, attention_columns);
  for (const RankTimeline& rank : ranks.first(attention_ranks)) {
    add_line(text, rank, attention_columns);
  }
  text += '\n';
  add_header(text, expert_columns);
  for (const RankTimeline& rank : ranks.subspan(attention_ranks)) {
    add_line(text, rank, expert_columns);
  }
  return text;
}

}  // namespace moe
