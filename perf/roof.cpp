// Plain copies: with ordinary stores, around the cache, and by the string instruction; the best of
// them is the roof.
#include "perf/roof.hpp"

#include <algorithm>
#include <functional>

#include "perf/kernels.hpp"
#include "perf/stats.hpp"

namespace m2n::perf {
namespace {

enum class Way { ordinary, streaming, string };

// One rank's part of all stages, for one operation of the workload.
class Part {
 public:
  Part(const Setup& setup, std::uint32_t rank, const std::vector<const Workload*>& works)
      : setup_{setup}, works_{works} {
    const bool attention = rank < setup.attention_ranks;
    plans_.resize(works.size());
    std::size_t rows = 0;
    std::size_t entries = 0;
    for (std::size_t a = 0; a < works.size(); ++a) {
      plans_[a].make(setup, works[a]->choices(0), works[a]->tokens());
      if (attention) {
        rows += plans_[a].rows();
      } else {
        mine_.push_back(&plans_[a].to[rank - setup.attention_ranks]);
        rows += mine_.back()->tokens.size();
        entries += mine_.back()->local_expert.size();
      }
    }
    const std::size_t width = std::max(setup.row_bytes(), setup.wire_row_bytes());
    bytes_ = rows * width;
    const std::size_t tokens = attention ? works[0]->tokens() : 0;
    from_ = Buffer{std::max(rows, tokens) * width};
    to_ = Buffer{std::max(rows, tokens) * width};
    if (setup.options.layout != Layout::rows) grouped_ = Buffer{entries * width};
  }

  std::size_t bytes() const noexcept { return bytes_; }
  void refresh(std::uint64_t operation) {
    if (mine_.empty()) works_[0]->produce(from_.data(), setup_.row_bytes(), operation);
  }
  void dispatch(Way way) const;
  void group(Way way) const;
  void expert(Way way);
  void attention(Way way);

 private:
  static auto copy(Way way) {
    return way == Way::ordinary    ? kernels().copy
           : way == Way::streaming ? kernels().copy_streaming
                                   : copy_string;
  }
  static auto merge(Way way) {
    return way == Way::streaming ? kernels().merge_streaming : kernels().merge;
  }

  const Setup& setup_;
  const std::vector<const Workload*>& works_;
  std::vector<Plan> plans_;
  std::vector<const PairPlan*> mine_;  // expert rank: what comes
  Buffer from_, to_, grouped_;
  std::size_t bytes_ = 0;
  std::vector<const void*> rows_;
};

void Part::dispatch(Way way) const {
  if (!mine_.empty()) return;
  const std::size_t row_bytes = setup_.row_bytes();
  std::byte* to = to_.data();
  for (const PairPlan& pair : plans_[0].to) {
    if (pair.tokens.size() == works_[0]->tokens()) {
      copy(way)(to, from_.data(), pair.tokens.size() * row_bytes);
      to += pair.tokens.size() * row_bytes;
      continue;
    }
    for (const std::uint32_t token : pair.tokens) {
      copy(way)(to, from_.data() + token * row_bytes, row_bytes);
      to += row_bytes;
    }
  }
  kernels().fence();
}

void Part::group(Way way) const {
  const std::size_t row_bytes = setup_.row_bytes();
  std::byte* to = grouped_.data();
  const std::byte* from = from_.data();
  for (const PairPlan* pair : mine_) {
    for (std::size_t r = 0; r < pair->tokens.size(); ++r, from += row_bytes) {
      for (std::uint32_t i = pair->first_entry[r]; i < pair->first_entry[r + 1]; ++i) {
        copy(way)(to, from, row_bytes);
        to += row_bytes;
      }
    }
  }
  kernels().fence();
}

// y = x in the run, so a row is read as often as it has experts there.
void Part::expert(Way way) {
  const std::size_t row_bytes = setup_.wire_row_bytes();
  std::byte* to = to_.data();
  const std::byte* from = from_.data();
  const std::byte* grouped = grouped_.data();
  for (const PairPlan* pair : mine_) {
    for (std::size_t r = 0; r < pair->tokens.size(); ++r, from += row_bytes, to += row_bytes) {
      const std::uint32_t count = pair->first_entry[r + 1] - pair->first_entry[r];
      rows_.assign(count, from);
      for (std::uint32_t i = 0; grouped != nullptr && i < count; ++i) {
        rows_[i] = grouped;
        grouped += setup_.row_bytes();
      }
      merge(way)(to, rows_.data(), count, row_bytes);
    }
  }
  kernels().fence();
}

void Part::attention(Way way) {
  if (!mine_.empty()) return;
  const std::size_t row_bytes = setup_.wire_row_bytes();
  const Plan& plan = plans_[0];
  const std::byte* from = to_.data();
  for (std::uint32_t t = 0; t < works_[0]->tokens(); ++t) {
    const std::uint32_t count = plan.first[t + 1] - plan.first[t];
    rows_.resize(count);
    for (auto& row : rows_) {
      row = from;
      from += row_bytes;
    }
    merge(way)(from_.data() + t * row_bytes, rows_.data(), count, row_bytes);
  }
  kernels().fence();
}

// Median of the best way; 0 where this rank has nothing to do.
double time_of(Part& part, const std::function<void(Way)>& stage) {
  const std::size_t bytes = part.bytes();
  const int turns = bytes > (16U << 20) ? 5 : bytes > (1U << 20) ? 25 : 150;
  double best = 1e18;
  for (const Way way : {Way::ordinary, Way::streaming, Way::string}) {
    std::vector<double> times;
    for (int turn = 0; turn < turns; ++turn) {
      part.refresh(static_cast<std::uint64_t>(turn));
      const std::uint64_t begin = now_ns();
      stage(way);
      times.push_back(static_cast<double>(now_ns() - begin));
    }
    best = std::min(best, *percentile(times, 0.5));
  }
  return best;
}

}  // namespace

Result<Roof> measure_roof(const Setup& setup, Board& board, std::uint32_t rank,
                          const std::vector<const Workload*>& works) {
  Part part{setup, rank, works};
  const bool attention = rank < setup.attention_ranks;
  Roof roof;
  const auto stage = [&](bool here, double& result_us,
                         const std::function<void(Way)>& work) -> Status {
    board.number(rank, Number::roof_ns) = 0;
    if (Status all = board.barrier(); !all) return all;
    if (here) board.number(rank, Number::roof_ns) = time_of(part, work);
    if (Status all = board.barrier(); !all) return all;
    result_us = board.max_number(Number::roof_ns) / 1e3;
    return board.barrier();
  };
  if (Status s = stage(attention, roof.dispatch_us, [&](Way way) { part.dispatch(way); }); !s) {
    return s;
  }
  const bool grouped = setup.options.layout != Layout::rows;
  if (Status s = stage(!attention && grouped, roof.group_us, [&](Way way) { part.group(way); });
      !s) {
    return s;
  }
  if (Status s = stage(!attention, roof.expert_us, [&](Way way) { part.expert(way); }); !s) {
    return s;
  }
  if (Status s = stage(attention, roof.attention_us, [&](Way way) { part.attention(way); }); !s) {
    return s;
  }
  return roof;
}

}  // namespace m2n::perf
