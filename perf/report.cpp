// Lines from samples.
#include "perf/report.hpp"

#include <algorithm>

#include "perf/stats.hpp"

namespace m2n::perf {
namespace {

// Samples of one engine in one state.
struct Samples {
  std::size_t blocks = 0, dropped = 0;
  std::vector<double> flags, dispatch, combine, roundtrip, produce;
  std::vector<std::vector<double>> by_rank;
};

void append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// The state of a block, or nothing if it changed on the way.
std::optional<CoreState> state_in(const Tag& tag, const RunFacts& facts) {
  if (!facts.bound) return CoreState::mixed;
  return state_of(tag, near_limit_ns(facts.smallest_flag_ns));
}

Samples pick(const EngineRun& engine, const RunFacts& facts, CoreState state) {
  Samples samples;
  for (const Block& block : engine.blocks) {
    const auto its = state_in(block, facts);
    if (!its) ++samples.dropped;
    if (its != state) continue;
    ++samples.blocks;
    if (block.flag_before_ns) samples.flags.push_back(*block.flag_before_ns);
    if (block.flag_after_ns) samples.flags.push_back(*block.flag_after_ns);
    append(samples.dispatch, block.dispatch);
    append(samples.combine, block.combine);
    append(samples.roundtrip, block.roundtrip);
    append(samples.produce, block.produce);
    samples.by_rank.resize(std::max(samples.by_rank.size(), block.by_rank.size()));
    for (std::size_t a = 0; a < block.by_rank.size(); ++a) {
      append(samples.by_rank[a], block.by_rank[a]);
    }
  }
  return samples;
}

Line shape_line(const Setup& setup, const RunFacts& facts, const SizeRun& run) {
  Line line;
  line.op = name(setup.options.op);
  line.transport = facts.transport;
  line.m = setup.attention_ranks;
  line.n = setup.expert_ranks;
  line.experts = setup.experts;
  line.top_k = setup.top_k;
  line.hidden = setup.hidden;
  line.dtype = m2n::name(setup.options.dtype);
  line.tokens = run.tokens;
  line.pieces = (run.tokens + setup.piece(run.tokens) - 1) / setup.piece(run.tokens);
  line.routing = setup.options.routing;
  line.oversubscribed = facts.oversubscribed;
  line.noisy = run.stolen > 0.01;
  line.checked = setup.options.check;
  line.wire_bytes = run.wire_bytes;
  line.logical_bytes = run.logical_bytes;
  if (setup.options.check) line.wrong = run.wrong;
  return line;
}

void fill_times(const Setup& setup, const Samples& samples, Line& line) {
  const Op op = setup.options.op;
  line.blocks = samples.blocks;
  line.dropped_blocks = samples.dropped;
  line.flag_ns = percentile(samples.flags, 0.5);
  if (op != Op::combine) {
    line.dispatch_p50_us = percentile(samples.dispatch, 0.5);
    line.dispatch_p99_us = percentile(samples.dispatch, 0.99);
  }
  if (op != Op::dispatch) {
    line.combine_p50_us = percentile(samples.combine, 0.5);
    line.combine_p99_us = percentile(samples.combine, 0.99);
  }
  line.produce_us = percentile(samples.produce, 0.5);
  if (op != Op::roundtrip) return;
  line.roundtrip_p50_us = percentile(samples.roundtrip, 0.5);
  line.roundtrip_p90_us = percentile(samples.roundtrip, 0.9);
  line.roundtrip_p99_us = percentile(samples.roundtrip, 0.99);
  std::vector<double> medians;
  for (const auto& rank : samples.by_rank) {
    if (const auto median = percentile(rank, 0.5)) medians.push_back(*median);
  }
  if (const auto ranks = spread(medians)) {
    line.rank_min_us = ranks->min;
    line.rank_avg_us = ranks->mean;
    line.rank_max_us = ranks->max;
  }
}

// The time that --op asks for.
std::optional<double> asked(Op op, const std::optional<double>& dispatch,
                            const std::optional<double>& combine,
                            const std::optional<double>& roundtrip) {
  return op == Op::dispatch ? dispatch : op == Op::combine ? combine : roundtrip;
}

// Plain copies in the same state.
std::optional<Roof> roof_in(const SizeRun& run, const RunFacts& facts, CoreState state) {
  std::vector<const RoofBlock*> blocks;
  for (const RoofBlock& block : run.roofs) {
    if (state_in(block, facts) == state) blocks.push_back(&block);
  }
  return roof_of(blocks);
}

void fill_rates(const Setup& setup, const RunFacts& facts, const SizeRun& run, Line& line) {
  const Op op = setup.options.op;
  const auto row = static_cast<double>(setup.wire_row_bytes());
  double wire = 0;
  double logical = 0;
  double roof = 0;
  const std::optional<Roof> plain = roof_in(run, facts, line.state);
  if (op != Op::combine) {
    wire += run.wire_bytes;
    logical += run.logical_bytes;
    if (plain) roof += plain->dispatch();
  }
  if (op != Op::dispatch) {
    wire += (setup.options.combine == Combine::reduced ? run.rows : run.entries) * row;
    logical += run.entries * row;
    if (plain) roof += plain->expert_us + plain->attention_us;
  }
  if (plain) line.roof_us = roof;
  if (plain && line.dispatch_p50_us) {
    line.dispatch_roof_fraction = plain->dispatch() / *line.dispatch_p50_us;
  }
  const auto time = asked(op, line.dispatch_p50_us, line.combine_p50_us, line.roundtrip_p50_us);
  if (!time || *time <= 0) return;
  line.algbw_gbps = logical / *time / 1e3;
  line.busbw_gbps = wire / *time / 1e3;
  if (plain) line.roof_fraction = roof / *time;
}

// Of the baseline's ways that pass messages, the fastest in this state counts.
void fill_baseline(const Setup& setup, const RunFacts& facts, const SizeRun& run, Line& line) {
  const Op op = setup.options.op;
  std::optional<double> best;
  for (std::size_t e = 1; e < run.engines.size(); ++e) {
    const EngineRun& engine = run.engines[e];
    const Samples samples = pick(engine, facts, line.state);
    const BaselineTime way{engine.name, engine.shared_memory, percentile(samples.dispatch, 0.5),
                           percentile(samples.combine, 0.5), percentile(samples.roundtrip, 0.5)};
    line.baselines.push_back(way);
    const auto time = asked(op, way.dispatch_p50_us, way.combine_p50_us, way.roundtrip_p50_us);
    if (way.shared_memory || !time || (best && *best <= *time)) continue;
    best = time;
    line.baseline = facts.baseline + ", " + way.name;
    line.baseline_dispatch_p50_us = way.dispatch_p50_us;
    line.baseline_combine_p50_us = way.combine_p50_us;
    line.baseline_roundtrip_p50_us = way.roundtrip_p50_us;
  }
  const auto own = asked(op, line.dispatch_p50_us, line.combine_p50_us, line.roundtrip_p50_us);
  if (best && own && *own > 0) line.speedup_p50 = *best / *own;
}

}  // namespace

std::vector<Line> summarise(const Setup& setup, RunFacts& facts, const SizeRun& run) {
  const auto learn = [&facts](const Tag& tag) {
    for (const auto& flag : {tag.flag_before_ns, tag.flag_after_ns}) {
      if (flag) facts.smallest_flag_ns = std::min(facts.smallest_flag_ns, *flag);
    }
  };
  for (const RoofBlock& block : run.roofs) learn(block);
  for (const EngineRun& engine : run.engines) {
    for (const Block& block : engine.blocks) learn(block);
  }
  std::vector<Line> lines;
  for (const CoreState state : {CoreState::near, CoreState::far, CoreState::mixed}) {
    const Samples samples = pick(run.engines[0], facts, state);
    if (samples.blocks == 0) continue;
    Line line = shape_line(setup, facts, run);
    line.state = state;
    fill_times(setup, samples, line);
    fill_rates(setup, facts, run, line);
    fill_baseline(setup, facts, run, line);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace m2n::perf
