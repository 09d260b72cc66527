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

CoreState state_of(double flag_ns, double limit_ns) {
  return flag_ns <= limit_ns ? CoreState::near : CoreState::far;
}

// The state of a block, or nothing if it changed on the way.
std::optional<CoreState> state_of(const Block& block, const RunFacts& facts) {
  if (!facts.bound) return CoreState::mixed;
  if (!block.flag_before_ns || !block.flag_after_ns) return CoreState::near;
  const double limit = near_limit_ns(facts.smallest_flag_ns);
  const CoreState before = state_of(*block.flag_before_ns, limit);
  if (before != state_of(*block.flag_after_ns, limit)) return {};
  return before;
}

Samples pick(const EngineRun& engine, const RunFacts& facts, CoreState state) {
  Samples samples;
  for (const Block& block : engine.blocks) {
    const auto its = state_of(block, facts);
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

void fill_rates(const Setup& setup, const SizeRun& run, Line& line) {
  const Op op = setup.options.op;
  const auto row = static_cast<double>(setup.wire_row_bytes());
  double wire = 0;
  double logical = 0;
  double roof = 0;
  if (op != Op::combine) {
    wire += run.wire_bytes;
    logical += run.logical_bytes;
    roof += run.roof.dispatch();
  }
  if (op != Op::dispatch) {
    wire += (setup.options.combine == Combine::reduced ? run.rows : run.entries) * row;
    logical += run.entries * row;
    roof += run.roof.expert_us + run.roof.attention_us;
  }
  line.roof_us = roof;
  if (line.dispatch_p50_us) {
    line.dispatch_roof_fraction = run.roof.dispatch() / *line.dispatch_p50_us;
  }
  const auto time = asked(op, line.dispatch_p50_us, line.combine_p50_us, line.roundtrip_p50_us);
  if (!time || *time <= 0) return;
  line.algbw_gbps = logical / *time / 1e3;
  line.busbw_gbps = wire / *time / 1e3;
  line.roof_fraction = roof / *time;
}

// Of the baseline's ways to do it, the fastest in this state counts.
void fill_baseline(const Setup& setup, const RunFacts& facts, const SizeRun& run, Line& line) {
  const Op op = setup.options.op;
  std::optional<double> best;
  for (std::size_t e = 1; e < run.engines.size(); ++e) {
    const Samples samples = pick(run.engines[e], facts, line.state);
    const auto dispatch = percentile(samples.dispatch, 0.5);
    const auto combine = percentile(samples.combine, 0.5);
    const auto roundtrip = percentile(samples.roundtrip, 0.5);
    const auto time = asked(op, dispatch, combine, roundtrip);
    if (!time || (best && *best <= *time)) continue;
    best = time;
    line.baseline = facts.baseline + ", " + run.engines[e].name;
    line.baseline_dispatch_p50_us = dispatch;
    line.baseline_combine_p50_us = combine;
    line.baseline_roundtrip_p50_us = roundtrip;
  }
  const auto own = asked(op, line.dispatch_p50_us, line.combine_p50_us, line.roundtrip_p50_us);
  if (best && own && *own > 0) line.speedup_p50 = *best / *own;
}

}  // namespace

const char* name(CoreState state) noexcept {
  return state == CoreState::near ? "near" : state == CoreState::far ? "far" : "mixed";
}

std::vector<Line> summarise(const Setup& setup, RunFacts& facts, const SizeRun& run) {
  for (const EngineRun& engine : run.engines) {
    for (const Block& block : engine.blocks) {
      for (const auto& flag : {block.flag_before_ns, block.flag_after_ns}) {
        if (flag) facts.smallest_flag_ns = std::min(facts.smallest_flag_ns, *flag);
      }
    }
  }
  std::vector<Line> lines;
  for (const CoreState state : {CoreState::near, CoreState::far, CoreState::mixed}) {
    const Samples samples = pick(run.engines[0], facts, state);
    if (samples.blocks == 0) continue;
    Line line = shape_line(setup, facts, run);
    line.state = state;
    fill_times(setup, samples, line);
    fill_rates(setup, run, line);
    fill_baseline(setup, facts, run, line);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace m2n::perf
