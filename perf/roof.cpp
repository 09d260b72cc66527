// Plain copies: with ordinary stores, around the cache, and by the string instruction; the best of
// them is the roof.
#include "perf/roof.hpp"

#include <algorithm>
#include <functional>

#include "perf/kernels.hpp"

namespace m2n::perf {
namespace {

enum class Way { ordinary, streaming, string };

}  // namespace

// One rank's part of all stages, for one operation of the workload.
class RoofBench::Part {
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
  void refresh() {
    if (mine_.empty()) works_[0]->produce(from_.data(), setup_.row_bytes(), operation_++);
  }
  void dispatch(Way way);
  void group(Way way);
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
  std::uint64_t operation_ = 0;
  std::vector<const void*> rows_;
};

void RoofBench::Part::dispatch(Way way) {
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

void RoofBench::Part::group(Way way) {
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
void RoofBench::Part::expert(Way way) {
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

void RoofBench::Part::attention(Way way) {
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

namespace {

// The first turns find the caches full of others' data.
double median_ns(std::size_t bytes, const std::function<void()>& refresh,
                 const std::function<void()>& work) {
  const int lead = bytes > (1U << 20) ? 1 : 2;
  const int turns = bytes > (16U << 20) ? 1 : bytes > (1U << 20) ? 4 : 16;
  std::vector<double> times;
  for (int turn = -lead; turn < turns; ++turn) {
    refresh();
    const std::uint64_t begin = now_ns();
    work();
    if (turn >= 0) times.push_back(static_cast<double>(now_ns() - begin));
  }
  return *percentile(times, 0.5);
}

}  // namespace

RoofBench::RoofBench(const Setup& setup, std::uint32_t rank, std::vector<const Workload*> works)
    : setup_{setup},
      rank_{rank},
      works_{std::move(works)},
      part_{std::make_unique<Part>(setup, rank, works_)} {}
RoofBench::~RoofBench() = default;

Status RoofBench::measure(Board& board, RoofBlock& block) {
  const bool attention = rank_ < setup_.attention_ranks;
  const bool grouped = setup_.options.layout != Layout::rows;
  using Stage = void (Part::*)(Way);
  constexpr Stage stage[] = {&Part::dispatch, &Part::group, &Part::expert, &Part::attention};
  const bool here[] = {attention, !attention && grouped, !attention, attention};
  for (std::size_t s = 0; s < RoofBlock::stages; ++s) {
    for (std::size_t w = 0; w < RoofBlock::ways; ++w) {
      double& mine = board.number(rank_, Number::roof_ns);
      mine = 0;
      if (Status all = board.barrier(); !all) return all;
      if (here[s]) {
        mine = median_ns(
            part_->bytes(), [&] { part_->refresh(); },
            [&] { (part_.get()->*stage[s])(static_cast<Way>(w)); });
      }
      if (Status all = board.barrier(); !all) return all;
      block.us[s][w] = board.max_number(Number::roof_ns) / 1e3;
      if (Status all = board.barrier(); !all) return all;
    }
  }
  return {};
}

std::optional<Roof> roof_of(const std::vector<const RoofBlock*>& blocks) {
  if (blocks.empty()) return {};
  std::array<double, RoofBlock::stages> best{};
  for (std::size_t s = 0; s < RoofBlock::stages; ++s) {
    best[s] = 1e18;
    for (std::size_t w = 0; w < RoofBlock::ways; ++w) {
      std::vector<double> times;
      for (const RoofBlock* block : blocks) times.push_back(block->us[s][w]);
      best[s] = std::min(best[s], *percentile(times, 0.5));
    }
  }
  return Roof{best[0], best[1], best[2], best[3]};
}

}  // namespace m2n::perf
