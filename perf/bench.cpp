// Blocks in turns.
#include "perf/bench.hpp"

#include <algorithm>
#include <cstdio>

#include "perf/baseline_engine.hpp"

namespace m2n::perf {
namespace {

constexpr std::uint32_t most_blocks = 8;
constexpr double budget_ns = 0.5e9;  // per engine

struct Counts {
  std::uint32_t lead = 0;   // untimed, at the start of a block
  std::uint32_t timed = 0;  // per block
  std::uint32_t blocks = most_blocks;
  // The last one is checked, which takes time, and so is not timed.
  std::uint32_t all() const noexcept { return lead + timed + 1; }
};

class SizeBench {
 public:
  SizeBench(const Runner& runner, std::uint32_t tokens)
      : runner_{runner}, setup_{*runner.setup}, board_{*runner.board}, tokens_{tokens} {
    result_.tokens = tokens;
    const bool attention = runner.rank < setup_.attention_ranks;
    const std::uint32_t first = attention ? runner.rank : 0;
    const std::uint32_t last = attention ? runner.rank + 1 : setup_.attention_ranks;
    for (std::uint32_t a = first; a < last; ++a) {
      works_.push_back(std::make_unique<Workload>(setup_, a, tokens));
    }
    records_.resize(Board::max_records);
  }
  Status measure();
  SizeRun take() { return std::move(result_); }

 private:
  bool attention() const noexcept { return runner_.rank < setup_.attention_ranks; }
  bool leader() const noexcept { return runner_.rank == 0; }
  Status measure_shape();
  Status open_engines();
  Status warm_up();
  Status run_block(std::size_t engine);
  Status run_roof();
  Status gather_bytes();
  Status pass(Engine& engine, std::uint32_t iterations, bool check_all);
  Status gather_wrong(Engine& engine);
  void collect(const Counts& counts, Block& block);
  void progress(std::uint32_t turn, std::uint32_t turns) const;

  const Runner& runner_;
  const Setup& setup_;
  Board& board_;
  std::uint32_t tokens_;
  std::vector<std::unique_ptr<Workload>> works_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Counts> counts_;
  std::unique_ptr<RoofBench> roof_;
  // Time stamps of a block. The board gets them afterwards: its memory is the other cores', too,
  // and would make a rank wait for a cache line in the middle of a round.
  std::vector<Record> records_;
  std::uint64_t operation_ = 0;  // the same on all ranks
  std::uint64_t library_operations_ = 0;
  SizeRun result_;
};

Status SizeBench::measure_shape() {
  double rows = 0;
  double entries = 0;
  if (attention()) {
    Plan plan;
    for (std::uint32_t op = 0; op < works_[0]->period(); ++op) {
      plan.make(setup_, works_[0]->choices(op), tokens_);
      rows += static_cast<double>(plan.rows()) / works_[0]->period();
      entries += static_cast<double>(plan.entries()) / works_[0]->period();
    }
  }
  board_.number(runner_.rank, Number::rows) = rows;
  board_.number(runner_.rank, Number::entries) = entries;
  if (Status all = board_.barrier(); !all) return all;
  result_.rows = board_.sum_number(Number::rows);
  result_.entries = board_.sum_number(Number::entries);
  std::vector<const Workload*> works;
  for (const auto& work : works_) works.push_back(work.get());
  roof_ = std::make_unique<RoofBench>(setup_, runner_.rank, works);
  return board_.barrier();
}

Status SizeBench::open_engines() {
  Seat seat{&setup_, runner_.rank, tokens_, attention() ? works_[0].get() : nullptr,
            runner_.oversubscribed};
  auto library = make_library_engine(seat, *runner_.group);
  if (!library) return library.status();
  engines_.push_back(std::move(*library));
  if (runner_.baseline != nullptr) {
    const BaselineModule& module = runner_.baseline->module();
    for (std::uint32_t variant = 0; variant < module.variant_count; ++variant) {
      engines_.push_back(make_baseline_engine(seat, module, variant));
    }
  }
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    const bool by_hand = e > 0 && runner_.baseline->module().variants[e - 1].shared_memory;
    result_.engines.push_back({engines_[e]->name(), by_hand, {}});
  }
  counts_.resize(engines_.size());
  return board_.barrier();
}

Status SizeBench::pass(Engine& engine, std::uint32_t iterations, bool check_all) {
  const std::uint32_t width = setup_.options.micro_batches;
  const std::span records{records_};
  if (Status all = board_.barrier(); !all) return all;
  for (std::uint32_t i = 0; i < iterations; ++i) {
    const bool check = setup_.options.check && (check_all || i + 1 == iterations);
    if (Status done =
            engine.iterate(operation_, check, records.subspan(std::size_t{i} * width, width));
        !done) {
      return done;
    }
    operation_ += width;
    if (&engine == engines_[0].get()) library_operations_ += width;
  }
  std::copy_n(records_.begin(), std::size_t{iterations} * width,
              board_.records(runner_.rank).begin());
  return gather_wrong(engine);
}

Status SizeBench::gather_wrong(Engine& engine) {
  const auto wrong = static_cast<double>(engine.take_wrong());
  board_.number(runner_.rank, Number::wrong) = wrong;
  if (Status all = board_.barrier(); !all) return all;
  const double sum = board_.sum_number(Number::wrong);
  if (sum > 0 && result_.wrong == 0) result_.wrong_engine = engine.name();
  result_.wrong += static_cast<std::uint64_t>(sum);
  return board_.barrier();
}

// Checked rounds, then a few that tell how many fit the budget. Rank 0 decides for all.
Status SizeBench::warm_up() {
  const Options& o = setup_.options;
  const std::uint32_t room = static_cast<std::uint32_t>(Board::max_records) / o.micro_batches;
  const std::uint32_t most_timed = room * 4 / 5;
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    const double bytes = static_cast<double>(tokens_) * static_cast<double>(setup_.row_bytes());
    const std::uint32_t standard = bytes > 8e6 ? 3 : bytes > 1e6 ? 10 : 50;
    const std::uint32_t warm = std::min(o.warmup != 0 ? o.warmup : standard, room);
    if (Status done = pass(*engines_[e], std::min(warm, 8U), true); !done) return done;
    const std::uint64_t begin = now_ns();
    if (Status done = pass(*engines_[e], warm, false); !done) return done;
    Counts& counts = counts_[e];
    if (leader()) {
      const double one = static_cast<double>(now_ns() - begin) / warm;
      const double fit = budget_ns / most_blocks / one;
      board_.decision() = static_cast<std::uint64_t>(std::clamp(fit, 4.0, 3000.0));
    }
    if (Status all = board_.barrier(); !all) return all;
    counts.timed = static_cast<std::uint32_t>(board_.decision());
    if (o.iterations != 0) {
      counts.blocks = std::max(std::min(most_blocks, o.iterations), o.iterations / most_timed + 1);
      counts.timed = (o.iterations + counts.blocks - 1) / counts.blocks;
    }
    counts.timed = std::min(counts.timed, most_timed);
    counts.lead = std::max(1U, counts.timed / 10);
    if (Status all = board_.barrier(); !all) return all;
  }
  return {};
}

// Rank 0 reads everybody's time stamps of the block that has just ended.
void SizeBench::collect(const Counts& counts, Block& block) {
  const std::uint32_t m = setup_.attention_ranks;
  const std::uint32_t width = setup_.options.micro_batches;
  block.by_rank.resize(m);
  const auto us = [](std::uint64_t from, std::uint64_t to) {
    return (static_cast<double>(to) - static_cast<double>(from)) / 1e3;
  };
  const std::size_t end = std::size_t{counts.lead + counts.timed} * width;
  for (std::size_t op = std::size_t{counts.lead} * width; op < end; ++op) {
    std::uint64_t start = UINT64_MAX;
    std::uint64_t done = 0;
    std::uint64_t produce = 0;
    double roundtrip = 0;
    for (std::uint32_t a = 0; a < m; ++a) {
      const Record& record = board_.records(a)[op];
      start = std::min(start, record.start);
      done = std::max(done, record.end);
      produce = std::max(produce, record.produce);
      block.by_rank[a].push_back(us(record.start, record.end));
      roundtrip = std::max(roundtrip, block.by_rank[a].back());
    }
    std::uint64_t readable = 0;
    std::uint64_t reply = UINT64_MAX;
    for (std::uint32_t e = m; e < setup_.ranks(); ++e) {
      const Record& record = board_.records(e)[op];
      readable = std::max(readable, record.readable);
      reply = std::min(reply, record.reply);
    }
    block.dispatch.push_back(us(start, readable));
    block.combine.push_back(us(reply, done));
    block.roundtrip.push_back(roundtrip);
    block.produce.push_back(static_cast<double>(produce) / 1e3);
  }
}

Status SizeBench::run_block(std::size_t engine) {
  Block block;
  if (Status ok = runner_.probe->measure(board_, block.flag_before_ns); !ok) return ok;
  if (Status ok = pass(*engines_[engine], counts_[engine].all(), false); !ok) return ok;
  if (leader()) collect(counts_[engine], block);
  if (Status ok = runner_.probe->measure(board_, block.flag_after_ns); !ok) return ok;
  if (leader()) result_.engines[engine].blocks.push_back(std::move(block));
  return {};
}

Status SizeBench::run_roof() {
  RoofBlock block;
  if (Status ok = runner_.probe->measure(board_, block.flag_before_ns); !ok) return ok;
  if (Status ok = roof_->measure(board_, block); !ok) return ok;
  if (Status ok = runner_.probe->measure(board_, block.flag_after_ns); !ok) return ok;
  if (leader()) result_.roofs.push_back(block);
  return {};
}

void SizeBench::progress(std::uint32_t turn, std::uint32_t turns) const {
  if (!leader() || !runner_.show_progress) return;
  std::fprintf(stderr, "\r%u tokens: block %u of %u ", tokens_, turn, turns);
  if (turn == turns) std::fprintf(stderr, "\r%40s\r", "");
}

// What the library counted, per operation.
Status SizeBench::gather_bytes() {
  board_.number(runner_.rank, Number::wire_bytes) = static_cast<double>(engines_[0]->wire_bytes());
  board_.number(runner_.rank, Number::logical_bytes) =
      static_cast<double>(engines_[0]->logical_bytes());
  if (Status all = board_.barrier(); !all) return all;
  const auto operations = static_cast<double>(library_operations_);
  result_.wire_bytes = board_.sum_number(Number::wire_bytes) / operations;
  result_.logical_bytes = board_.sum_number(Number::logical_bytes) / operations;
  return board_.barrier();
}

Status SizeBench::measure() {
  if (Status ok = measure_shape(); !ok) return ok;
  if (Status ok = open_engines(); !ok) return ok;
  if (Status ok = warm_up(); !ok) return ok;
  const CpuTicks before = read_ticks();
  std::uint32_t turns = 0;
  for (const Counts& counts : counts_) turns = std::max(turns, counts.blocks);
  for (std::uint32_t turn = 0; turn < turns && result_.wrong == 0; ++turn) {
    progress(turn + 1, turns);
    if (Status ok = run_roof(); !ok) return ok;
    for (std::size_t e = 0; e < engines_.size(); ++e) {
      if (turn >= counts_[e].blocks) continue;
      if (Status ok = run_block(e); !ok) return ok;
    }
  }
  const CpuTicks after = read_ticks();
  if (after.total > before.total) {
    result_.stolen = static_cast<double>(after.stolen - before.stolen) /
                     static_cast<double>(after.total - before.total);
  }
  return gather_bytes();
}

}  // namespace

Result<SizeRun> run_size(const Runner& runner, std::uint32_t tokens) {
  SizeBench bench{runner, tokens};
  if (Status ok = bench.measure(); !ok) {
    runner.give_up(ok);  // before the engines go, which needs all ranks
    return ok;
  }
  return bench.take();
}

}  // namespace m2n::perf
