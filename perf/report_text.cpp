// Lines as JSON and as rows of a table.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "perf/report.hpp"

namespace m2n::perf {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json value(const std::optional<T>& maybe) {
  return maybe ? Json(*maybe) : Json(nullptr);
}

std::string cell(const std::optional<double>& maybe, int width) {
  if (!maybe) return fmt::format("{:>{}}", "-", width);
  const int digits = *maybe < 10 ? 2 : *maybe < 1000 ? 1 : 0;
  return fmt::format("{:>{}.{}f}", *maybe, width, digits);
}

// The time that --op asks for.
std::optional<double> asked(Op op, const BaselineTime& way) {
  return op == Op::dispatch  ? way.dispatch_p50_us
         : op == Op::combine ? way.combine_p50_us
                             : way.roundtrip_p50_us;
}

std::string baseline_cells(Op op, const Line& line) {
  const BaselineTime best{"", false, line.baseline_dispatch_p50_us, line.baseline_combine_p50_us,
                          line.baseline_roundtrip_p50_us};
  std::optional<double> windows;
  for (const BaselineTime& way : line.baselines) {
    if (way.shared_memory) windows = asked(op, way);
  }
  return " " + cell(asked(op, best), 8) + " " + cell(line.speedup_p50, 7) + " " + cell(windows, 8);
}

}  // namespace

std::string to_json(const Line& line) {
  Json json;
  json["op"] = line.op;
  json["transport"] = line.transport;
  json["m"] = line.m;
  json["n"] = line.n;
  json["experts"] = line.experts;
  json["top_k"] = line.top_k;
  json["hidden"] = line.hidden;
  json["dtype"] = line.dtype;
  json["tokens"] = line.tokens;
  json["pieces"] = line.pieces;
  json["routing"] = line.routing;
  json["oversubscribed"] = line.oversubscribed;
  json["noisy"] = line.noisy;
  json["flag_ns"] = value(line.flag_ns);
  json["core_state"] = name(line.state);
  json["blocks"] = line.blocks;
  json["dropped_blocks"] = line.dropped_blocks;
  json["wire_bytes"] = line.wire_bytes;
  json["logical_bytes"] = line.logical_bytes;
  json["dispatch_p50_us"] = value(line.dispatch_p50_us);
  json["dispatch_p99_us"] = value(line.dispatch_p99_us);
  json["combine_p50_us"] = value(line.combine_p50_us);
  json["combine_p99_us"] = value(line.combine_p99_us);
  json["roundtrip_p50_us"] = value(line.roundtrip_p50_us);
  json["roundtrip_p90_us"] = value(line.roundtrip_p90_us);
  json["roundtrip_p99_us"] = value(line.roundtrip_p99_us);
  json["rank_min_us"] = value(line.rank_min_us);
  json["rank_avg_us"] = value(line.rank_avg_us);
  json["rank_max_us"] = value(line.rank_max_us);
  json["produce_us"] = value(line.produce_us);
  json["algbw_gbps"] = value(line.algbw_gbps);
  json["busbw_gbps"] = value(line.busbw_gbps);
  json["roof_us"] = value(line.roof_us);
  json["roof_fraction"] = value(line.roof_fraction);
  json["dispatch_roof_fraction"] = value(line.dispatch_roof_fraction);
  json["wrong"] = value(line.wrong);
  if (line.baseline) {
    json["baseline"] = *line.baseline;
    json["baseline_dispatch_p50_us"] = value(line.baseline_dispatch_p50_us);
    json["baseline_combine_p50_us"] = value(line.baseline_combine_p50_us);
    json["baseline_roundtrip_p50_us"] = value(line.baseline_roundtrip_p50_us);
    json["speedup_p50"] = value(line.speedup_p50);
    for (const BaselineTime& way : line.baselines) {
      if (way.shared_memory) {
        json["shared_window_dispatch_p50_us"] = value(way.dispatch_p50_us);
        json["shared_window_combine_p50_us"] = value(way.combine_p50_us);
        json["shared_window_roundtrip_p50_us"] = value(way.roundtrip_p50_us);
      }
      json["baseline_ways"][way.name] = {{"dispatch_p50_us", value(way.dispatch_p50_us)},
                                         {"combine_p50_us", value(way.combine_p50_us)},
                                         {"roundtrip_p50_us", value(way.roundtrip_p50_us)}};
    }
  }
  return json.dump();
}

std::string table_head(const Setup& setup) {
  std::string head = fmt::format("{:>7} {:>6} {:>17} {:>17} {:>17} {:>8} {:>7} {:>6}", "tokens",
                                 "cores", "dispatch p50/p99", "combine p50/p99",
                                 "roundtrip p50/p99", "produce", "GB/s", "roof");
  if (setup.options.baseline != Baseline::none) {
    head += fmt::format(" {:>8} {:>7} {:>8}", "MPI p50", "x MPI", "windows");
  }
  return head + "   (times in us)\n";
}

std::string table_row(const Setup& setup, const Line& line) {
  const auto pair = [](const std::optional<double>& a, const std::optional<double>& b) {
    return cell(a, 8) + " " + cell(b, 8);
  };
  std::string row =
      fmt::format("{:>7} {:>6} {} {} {} {} {} {}", line.tokens, name(line.state),
                  pair(line.dispatch_p50_us, line.dispatch_p99_us),
                  pair(line.combine_p50_us, line.combine_p99_us),
                  pair(line.roundtrip_p50_us, line.roundtrip_p99_us), cell(line.produce_us, 8),
                  cell(line.busbw_gbps, 7), cell(line.roof_fraction, 6));
  if (setup.options.baseline != Baseline::none) row += baseline_cells(setup.options.op, line);
  if (line.dropped_blocks != 0) {
    row += fmt::format("  {} blocks dropped", line.dropped_blocks);
  }
  if (line.pieces > 1) row += fmt::format("  in {} pieces", line.pieces);
  if (line.oversubscribed) row += "  oversubscribed";
  if (line.noisy) row += "  noisy";
  if (!line.checked) row += "  unchecked";
  return row + "\n";
}

}  // namespace m2n::perf
