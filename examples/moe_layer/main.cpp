// A Mixture-of-Experts model of several layers over M attention ranks and N expert ranks: runs it
// through m2n, says where the time went, and compares every bit with one process.
// Exit code 0 = equal, 1 = not equal or a rank failed, 2 = wrong options.
#include <fmt/core.h>

#include <cstdio>

#include "gemm.hpp"
#include "launch.hpp"
#include "options.hpp"
#include "reference.hpp"
#include "report.hpp"
#include "table.hpp"

namespace moe {
namespace {

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

std::string describe(const Options& options) {
  return fmt::format(
      "moe_layer: {} attention + {} expert ranks over {}, {} layers, {} micro-batches of {} tokens "
      "per attention rank,\n           {} experts (SwiGLU {} -> {} -> {}), top-{}, combine {}",
      options.attention_ranks, options.expert_ranks, options.transport, options.layers,
      options.micro_batches, options.tokens, options.experts, options.hidden, options.intermediate,
      options.hidden, options.top_k,
      options.combine == m2n::Combine::reduced ? "reduced" : "per-expert");
}

// False if a rank failed; says which and why.
bool all_finished(const Options& options, Reports& reports) {
  bool all = true;
  for (std::uint32_t r = 0; r < options.ranks(); ++r) {
    const RankReport& report = reports.rank(r);
    if (report.finished && report.error[0] == '\0') continue;
    all = false;
    fmt::print(stderr, "moe_layer: rank {} failed: {}\n", r,
               report.error[0] != '\0' ? report.error.data() : "it ended early");
  }
  return all;
}

void print_traffic(const Options& options, Reports& reports) {
  std::uint64_t rows = 0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t logical_bytes = 0;
  for (std::uint32_t r = 0; r < options.attention_ranks; ++r) {
    rows += reports.rank(r).rows;
    wire_bytes += reports.rank(r).wire_bytes;
    logical_bytes += reports.rank(r).logical_bytes;
  }
  say(fmt::format(
      "\ndispatched {} rows, {:.1f} MB on the wire ({:.1f} MB with one row per token and expert)",
      rows, static_cast<double>(wire_bytes) / 1e6, static_cast<double>(logical_bytes) / 1e6));
}

bool check(const Options& options, Reports& reports) {
  say("checking against one process ...");
  const std::vector<Bf16> expected = run_reference(options, [&options](std::uint32_t done) {
    if (done % ((options.layers + 3) / 4) == 0) {
      say(fmt::format("  layer {} of {}", done, options.layers));
    }
  });
  if (options.corrupt) reports.outputs(0)[0] ^= 1u;
  const Difference difference = compare(options, expected, reports.outputs(0));
  const std::size_t tokens = expected.size() / options.hidden;
  if (difference.tokens == 0) {
    say(fmt::format("equal bit for bit: {} tokens x {} numbers after {} layers", tokens,
                    options.hidden, options.layers));
    return true;
  }
  const std::uint64_t first = difference.first;
  fmt::print(stderr,
             "moe_layer: NOT EQUAL: {} of {} tokens differ; the first is token {} of micro-batch "
             "{} of attention rank {}\n",
             difference.tokens, tokens, first % options.tokens,
             first / options.tokens % options.micro_batches, first / options.rank_tokens());
  return false;
}

int run(Options options) {
  use_one_blas_thread();
  options.tile_rows = choose_tile_rows({{options.hidden, options.hidden},
                                        {options.hidden, options.experts},
                                        {options.hidden, options.intermediate},
                                        {options.intermediate, options.hidden}});
  Reports reports{options};
  if (!reports) {
    fmt::print(stderr, "moe_layer: no memory for the results\n");
    return 1;
  }
  say(describe(options));
  say(fmt::format("running the ranks (GEMM tiles of {} rows) ...", options.tile_rows));
  if (const std::string failure = run_ranks(options, reports); !failure.empty()) {
    fmt::print(stderr, "moe_layer: {}\n", failure);
    return 1;
  }
  if (!all_finished(options, reports)) return 1;

  const std::vector<RankTimeline> timelines = reports.timelines();
  say("\nwhere the time went, in ms and as a share of the rank's total:\n");
  fmt::print("{}", time_table(timelines, options.attention_ranks));
  print_traffic(options, reports);
  if (!options.trace_path.empty()) {
    if (!write_trace(options.trace_path, timelines)) {
      fmt::print(stderr, "moe_layer: cannot write {}\n", options.trace_path);
      return 1;
    }
    say(fmt::format("timeline in {} (open it in https://ui.perfetto.dev)", options.trace_path));
  }
  return check(options, reports) ? 0 : 1;
}

}  // namespace
}  // namespace moe

int main(int argc, char** argv) {
  moe::Options options;
  if (const std::optional<int> code = moe::parse_options(argc, argv, options)) return *code;
  return moe::run(options);
}
