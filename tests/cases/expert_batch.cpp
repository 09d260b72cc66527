// The expert side of a Scenario: compares a batch with what the reference routed, and answers it.
#include <algorithm>
#include <cstring>
#include <map>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using reference::Route;

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

std::vector<Route> routes_to(const ExpectedStep& step, std::uint32_t rank) {
  std::vector<Route> here;
  std::copy_if(step.routes.begin(), step.routes.end(), std::back_inserter(here),
               [&](const Route& route) { return route.rank == rank; });
  return here;
}

bool same_bits(float a, float b) {
  return std::memcmp(&a, &b, 4) == 0;
}

// All arrays of one payload row against the caller's.
bool same_row(const ExpertSide& side, const RowFormat& format, const ExpectedStep& step,
              std::pair<const std::byte*, std::uint32_t> row) {
  for (std::size_t i = 0; i < format.sizes_bytes.size(); ++i) {
    const std::size_t size = format.sizes_bytes[i];
    const std::vector<std::byte>& from = i == 0 ? step.inputs.x : step.inputs.extra[i - 1];
    if (std::memcmp(row.first + format.offsets_bytes[i], from.data() + row.second * size, size) !=
        0) {
      return false;
    }
  }
  return format.sizes_bytes.size() == 1 + side.config->extra_row_bytes.size();
}

std::string check_source(const ExpertSide& side, const RowFormat& format,
                         const BatchSource& source) {
  const ExpectedStep& step = side.expected->at(source.attention_rank, source.operation);
  const std::vector<Route> routes = routes_to(step, side.rank);
  if (source.layer != step.inputs.layer || source.micro_batch != step.inputs.micro_batch) {
    return "layer or micro-batch";
  }
  if (source.entries.size() != routes.size()) {
    return number(source.entries.size()) + " entries instead of " + number(routes.size());
  }
  std::uint32_t row = 0, pair = 0;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const Route& route = routes[i];
    if (i == 0 || routes[i - 1].token != route.token) {
      row += i == 0 ? 0 : 1;
      if (row >= source.rows || source.row[row].token != route.token ||
          source.row[row].first_entry != i) {
        return "row information of row " + number(row);
      }
      if (source.base != nullptr && side.config->layout == Layout::rows &&
          !same_row(side, format, step, {source.payload(row), route.token})) {
        return "payload of row " + number(row) + " (token " + number(route.token) + ")";
      }
    }
    const Entry& entry = source.entries[i];
    if (entry.local_expert() != route.local_expert || entry.repeated() != route.repeated ||
        !same_bits(entry.weight, route.weight)) {
      return "entry " + number(i);
    }
    if (route.repeated) continue;
    if (pair >= source.pairs.size() || source.pairs[pair].row != row ||
        source.pairs[pair].local_expert != route.local_expert) {
      return "pair " + number(pair);
    }
    ++pair;
  }
  const std::size_t rows = routes.empty() ? 0 : row + 1;
  if (source.rows != rows || source.pairs.size() != pair) {
    return number(source.rows) + " rows instead of " + number(rows) + ", or pairs";
  }
  return {};
}

std::string check_grouped(const ExpertSide& side, const RowFormat& format, const Batch& batch) {
  const GroupedRows& grouped = batch.grouped();
  const std::size_t experts = side.identity.size();
  if (grouped.counts.size() != experts || grouped.first_row.size() != experts) {
    return "grouped: number of experts";
  }
  std::vector<bool> used(grouped.rows);
  for (std::uint32_t e = 0; e < experts; ++e) {
    std::size_t j = 0;
    for (std::size_t s = 0; s < batch.sources().size(); ++s) {
      const BatchSource& source = batch.sources()[s];
      const ExpectedStep& step = side.expected->at(source.attention_rank, source.operation);
      for (const Pair& pair : source.pairs) {
        if (pair.local_expert != e) continue;
        const std::size_t at = grouped.first_row[e] + j++;
        if (at >= grouped.rows || used[at]) return "grouped: geometry of expert " + number(e);
        used[at] = true;
        if (grouped.source_of[at] != static_cast<std::int32_t>(s) ||
            grouped.row_of[at] != pair.row) {
          return "grouped: source of row " + number(at);
        }
        if (!same_row(side, format, step,
                      {grouped.base + at * grouped.row_stride_bytes, source.row[pair.row].token})) {
          return "grouped: payload of row " + number(at);
        }
      }
    }
    if (grouped.counts[e] != j) return "grouped: count of expert " + number(e);
    const std::size_t alignment =
        side.config->layout == Layout::packed ? side.config->packed_alignment : 1;
    if (grouped.first_row[e] % alignment != 0) return "packed: alignment of expert " + number(e);
  }
  for (std::size_t i = 0; i < grouped.rows; ++i) {
    if (!used[i] && grouped.source_of[i] != -1) return "grouped: padding row " + number(i);
  }
  return {};
}

}  // namespace

std::string check_batch(const ExpertSide& side, const Channel& channel, const Batch& batch) {
  const RowFormat format = channel.row_format();
  std::map<std::pair<std::uint32_t, std::uint64_t>, int> seen;
  std::size_t rows = 0, pairs = 0;
  for (const BatchSource& source : batch.sources()) {
    const std::string who = "source " + number(source.attention_rank) + ", operation " +
                            number(source.operation) + ": ";
    if (source.attention_rank >= side.expected->of.size() ||
        source.operation >= side.scenario->steps) {
      return who + "unknown";
    }
    if (seen[{source.attention_rank, source.operation}]++ != 0) return who + "twice";
    const std::string wrong = check_source(side, format, source);
    if (!wrong.empty()) return who + wrong;
    rows += source.rows;
    pairs += source.pairs.size();
  }
  if (batch.total_rows() != rows || batch.total_pairs() != pairs) return "totals";
  if (side.config->presence == Presence::every &&
      batch.sources().size() != side.expected->of.size()) {
    return number(batch.sources().size()) + " sources in lockstep";
  }
  if (side.config->layout == Layout::rows) return {};
  return check_grouped(side, format, batch);
}

namespace {

// The y rows of one source, in the form the scenario asks for.
class SourceAnswer {
 public:
  SourceAnswer(const ExpertSide& side, const BatchSource& source)
      : side_{side},
        source_{source},
        stride_{side.config->hidden * size_of(side.config->wire) + side.scenario->form.y_pad_bytes},
        y_(source.pairs.size() * stride_, std::byte{0xFF}) {
    const auto count = static_cast<std::uint32_t>(source.pairs.size());
    for (std::uint32_t j = 0; j < count; ++j)
      order_.push_back(side.scenario->form.y_index ? count - 1 - j : j);
  }
  // Of all rows below `rows`.
  void compute(const reference::Expert& expert, std::uint32_t rows) {
    for (; next_ < source_.pairs.size() && source_.pairs[next_].row < rows; ++next_) {
      const Pair& pair = source_.pairs[next_];
      const Identity& who = side_.identity[pair.local_expert];
      expert(source_.payload(pair.row), who.expert, who.part, y_.data() + order_[next_] * stride_);
    }
  }
  Outputs outputs() const {
    const Form& form = side_.scenario->form;
    return {y_.data(), form.y_pad_bytes == 0 ? 0 : stride_, form.y_index ? order_.data() : nullptr};
  }

 private:
  const ExpertSide& side_;
  const BatchSource& source_;
  std::size_t stride_;
  std::vector<std::byte> y_;
  std::vector<std::uint32_t> order_;
  std::size_t next_ = 0;
};

Status answer_rows(const ExpertSide& side, const reference::Expert& expert, Batch& batch,
                   Channel& channel) {
  std::vector<SourceAnswer> answers;
  std::vector<Outputs> outputs;
  for (const BatchSource& source : batch.sources()) {
    answers.emplace_back(side, source).compute(expert, source.rows);
    outputs.push_back(answers.back().outputs());
  }
  return channel.reply(batch, outputs);
}

// Pieces of any size; the last source is sometimes left to reply().
Status answer_early(const ExpertSide& side, const reference::Expert& expert, Batch& batch,
                    Channel& channel) {
  const std::vector<BatchSource> sources{batch.sources().begin(), batch.sources().end()};
  std::vector<SourceAnswer> answers;
  std::vector<Outputs> outputs;
  for (const BatchSource& source : sources)
    outputs.push_back(answers.emplace_back(side, source).outputs());
  const bool whole = sources.front().operation % 2 != 0;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const bool last = whole && s + 1 == sources.size();
    std::uint32_t cut = last ? sources[s].rows : static_cast<std::uint32_t>(s % 3);
    for (std::uint32_t rows = 0;; cut = cut % 5 + 1) {
      rows = std::min(sources[s].rows, rows + cut);
      if (Status come = channel.await_rows(batch, s, rows); !come) return come;
      answers[s].compute(expert, rows);
      if (last) break;
      if (Status sent = channel.reply_rows(batch, s, rows, outputs[s]); !sent) return sent;
      if (rows == sources[s].rows) break;
    }
  }
  return whole ? channel.reply(batch, outputs) : Status{};
}

}  // namespace

Status answer(const ExpertSide& side, Batch& batch, Channel& channel) {
  const reference::Expert expert =
      side.scenario->expert ? side.scenario->expert : scaling_expert(*side.config);
  if (side.config->layout == Layout::rows && side.scenario->early)
    return answer_early(side, expert, batch, channel);
  if (side.config->layout == Layout::rows) return answer_rows(side, expert, batch, channel);
  const GroupedRows& grouped = batch.grouped();
  const std::size_t stride =
      side.config->hidden * size_of(side.config->wire) + side.scenario->form.y_pad_bytes;
  std::vector<std::byte> y(grouped.rows * stride, std::byte{0xFF});  // padding stays NaN
  for (std::uint32_t e = 0; e < grouped.counts.size(); ++e) {
    const Identity& who = side.identity[e];
    for (std::size_t j = 0; j < grouped.counts[e]; ++j) {
      const std::size_t at = grouped.first_row[e] + j;
      expert(grouped.base + at * grouped.row_stride_bytes, who.expert, who.part,
             y.data() + at * stride);
    }
  }
  return channel.reply(
      batch, Outputs{y.data(), side.scenario->form.y_pad_bytes == 0 ? 0 : stride, nullptr});
}

}  // namespace m2n::testing
