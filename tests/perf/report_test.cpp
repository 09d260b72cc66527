// Lines: states are kept apart, changed blocks are dropped, JSON has every field.
#include "perf/report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace m2n::perf {
namespace {

Block block(double before, double after, double time) {
  Block made;
  made.flag_before_ns = before;
  made.flag_after_ns = after;
  for (int i = 0; i < 10; ++i) {
    made.dispatch.push_back(time / 2);
    made.combine.push_back(time / 2);
    made.roundtrip.push_back(time);
    made.produce.push_back(1);
  }
  made.by_rank = {made.roundtrip};
  return made;
}

// Plain copies: 4 us to dispatch, 3 for each half of the combine, by the way that is best for it.
RoofBlock roof_block(double before, double after, double factor) {
  RoofBlock made;
  made.flag_before_ns = before;
  made.flag_after_ns = after;
  made.us = {{{4 * factor, 9 * factor, 9 * factor},
              {0, 0, 0},
              {9 * factor, 3 * factor, 9 * factor},
              {9 * factor, 9 * factor, 3 * factor}}};
  return made;
}

SizeRun two_states() {
  SizeRun run;
  run.tokens = 8;
  run.roofs = {roof_block(60, 60, 1), roof_block(60, 240, 50), roof_block(240, 240, 3),
               roof_block(61, 61, 1)};
  run.rows = 8;
  run.entries = 16;
  run.wire_bytes = 1000;
  run.logical_bytes = 2000;
  run.engines.push_back(
      {"m2n", false, {block(60, 62, 20), block(61, 240, 999), block(240, 250, 40)}});
  run.engines.push_back({"mpi alltoallv", false, {block(60, 60, 80), block(240, 240, 120)}});
  run.engines.push_back({"mpi messages", false, {block(60, 60, 60), block(240, 240, 160)}});
  run.engines.push_back({"mpi shared windows", true, {block(60, 60, 22), block(240, 240, 45)}});
  return run;
}

Setup setup_with_baseline() {
  Setup setup;
  setup.hidden = 64;
  setup.options.baseline = Baseline::mpi;
  return setup;
}

TEST(PerfReport, KeepsStatesApart) {
  RunFacts facts;
  facts.transport = "shm";
  facts.baseline = "Some MPI";
  const auto lines = summarise(setup_with_baseline(), facts, two_states());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].state, CoreState::near);
  EXPECT_EQ(lines[0].blocks, 1U);
  EXPECT_EQ(lines[0].dropped_blocks, 1U);
  EXPECT_EQ(lines[0].roundtrip_p50_us, 20);
  EXPECT_EQ(lines[0].roof_fraction, 0.5);
  EXPECT_EQ(lines[0].baseline, "Some MPI, mpi messages");
  EXPECT_EQ(lines[0].speedup_p50, 3);
  EXPECT_EQ(lines[0].roof_us, 10);
  EXPECT_EQ(lines[1].roof_us, 30);
  EXPECT_EQ(lines[1].roof_fraction, 0.75);
  EXPECT_EQ(lines[1].state, CoreState::far);
  EXPECT_EQ(lines[1].roundtrip_p50_us, 40);
  EXPECT_EQ(lines[1].baseline, "Some MPI, mpi alltoallv");
  EXPECT_EQ(lines[1].speedup_p50, 3);
}

// Faster than any message, and so beside them, not among them.
TEST(PerfReport, SharedWindowsAreReportedBesideTheMessages) {
  RunFacts facts;
  facts.baseline = "Some MPI";
  const auto lines = summarise(setup_with_baseline(), facts, two_states());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].baseline_roundtrip_p50_us, 60);
  const auto json = nlohmann::json::parse(to_json(lines[0]));
  EXPECT_EQ(json["shared_window_roundtrip_p50_us"], 22);
  EXPECT_EQ(json["baseline_ways"]["mpi alltoallv"]["roundtrip_p50_us"], 80);
  EXPECT_EQ(nlohmann::json::parse(to_json(lines[1]))["shared_window_roundtrip_p50_us"], 45);
}

TEST(PerfReport, AStateWithoutPlainCopiesHasNoRoof) {
  RunFacts facts;
  SizeRun run = two_states();
  run.roofs = {roof_block(60, 60, 1)};
  const auto lines = summarise(setup_with_baseline(), facts, run);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].roof_us, 10);
  EXPECT_FALSE(lines[1].roof_us);
  EXPECT_FALSE(lines[1].roof_fraction);
  EXPECT_FALSE(lines[1].dispatch_roof_fraction);
  EXPECT_TRUE(lines[1].busbw_gbps);
}

TEST(PerfReport, UnboundIsMixed) {
  RunFacts facts;
  facts.bound = false;
  const auto lines = summarise(setup_with_baseline(), facts, two_states());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].state, CoreState::mixed);
  EXPECT_EQ(lines[0].blocks, 3U);
}

TEST(PerfReport, DispatchAloneHasNoRoundTrip) {
  RunFacts facts;
  auto setup = setup_with_baseline();
  setup.options.op = Op::dispatch;
  const auto lines = summarise(setup, facts, two_states());
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines[0].dispatch_p50_us, 10);
  EXPECT_FALSE(lines[0].roundtrip_p50_us);
  EXPECT_FALSE(lines[0].combine_p50_us);
  EXPECT_EQ(lines[0].roof_us, 4);
  EXPECT_EQ(lines[0].speedup_p50, 3);
}

TEST(PerfReport, JsonHasEveryField) {
  RunFacts facts;
  const auto lines = summarise(setup_with_baseline(), facts, two_states());
  const auto json = nlohmann::json::parse(to_json(lines[0]));
  for (const char* field : {"op",
                            "transport",
                            "m",
                            "n",
                            "experts",
                            "top_k",
                            "hidden",
                            "dtype",
                            "tokens",
                            "routing",
                            "oversubscribed",
                            "noisy",
                            "flag_ns",
                            "core_state",
                            "blocks",
                            "dropped_blocks",
                            "wire_bytes",
                            "logical_bytes",
                            "dispatch_p50_us",
                            "dispatch_p99_us",
                            "combine_p50_us",
                            "combine_p99_us",
                            "roundtrip_p50_us",
                            "roundtrip_p90_us",
                            "roundtrip_p99_us",
                            "rank_min_us",
                            "rank_avg_us",
                            "rank_max_us",
                            "produce_us",
                            "algbw_gbps",
                            "busbw_gbps",
                            "roof_us",
                            "roof_fraction",
                            "dispatch_roof_fraction",
                            "wrong",
                            "baseline",
                            "baseline_roundtrip_p50_us",
                            "speedup_p50",
                            "shared_window_roundtrip_p50_us"}) {
    ASSERT_TRUE(json.contains(field)) << field;
    EXPECT_FALSE(json[field].is_null()) << field;
  }
}

TEST(PerfReport, WhatWasNotMeasuredIsNull) {
  Line line;
  EXPECT_TRUE(nlohmann::json::parse(to_json(line))["flag_ns"].is_null());
  EXPECT_FALSE(nlohmann::json::parse(to_json(line)).contains("baseline"));
}

}  // namespace
}  // namespace m2n::perf
