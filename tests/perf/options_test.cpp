// The command line: words, numbers, and what does not fit together.
#include <gtest/gtest.h>

#include <fstream>
#include <initializer_list>

#include "perf/placement_file.hpp"
#include "perf/setup.hpp"

namespace m2n::perf {
namespace {

Result<Parsed> parse(std::initializer_list<const char*> words) {
  std::vector<const char*> argv{"m2n_perf"};
  argv.insert(argv.end(), words);
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

Result<Setup> settled(std::initializer_list<const char*> words,
                      const std::optional<World>& world = {}) {
  auto parsed = parse(words);
  if (!parsed) return parsed.status();
  return settle(parsed->options, world);
}

const std::string demo = std::string{"file:"} + M2N_DEMO_TRACE;

TEST(PerfOptions, RefusesWhatItDoesNotKnow) {
  for (const auto& words :
       std::initializer_list<std::initializer_list<const char*>>{{"--tokenz", "1"},
                                                                 {"--transport", "tcp"},
                                                                 {"--op", "pipeline"},
                                                                 {"--model", "gpt"},
                                                                 {"--dtype", "f64"},
                                                                 {"--tokens", "0"},
                                                                 {"--tokens", "8:4"},
                                                                 {"--tokens", "1:8:x1"},
                                                                 {"--tokens", "1:8:2"},
                                                                 {"--tokens", "1:2:x2:3"},
                                                                 {"--tokens", "1,"},
                                                                 {"--tokens", "1,8:4"},
                                                                 {"--tokens", "x"},
                                                                 {"--tokens", "1048577"},
                                                                 {"--ranks", "2"},
                                                                 {"--ranks", "0x1"},
                                                                 {"--ranks", "1x257"},
                                                                 {"--ranks", "1x2x3"},
                                                                 {"--top-k", "0"},
                                                                 {"--top-k", "129"},
                                                                 {"--hidden", "-1"},
                                                                 {"--depth", "17"},
                                                                 {"--iters", "ten"},
                                                                 {"--bind", "maybe"},
                                                                 {"--baseline", "nccl"},
                                                                 {"--layout", "columns"},
                                                                 {"--exchange", "pull"},
                                                                 {"stray"},
                                                                 {"--tokens"}}) {
    const auto parsed = parse(words);
    EXPECT_FALSE(parsed) << *words.begin();
    if (parsed) continue;
    EXPECT_EQ(parsed.code(), Code::invalid);
    EXPECT_NE(parsed.status().text().find("m2n_perf"), std::string::npos);
  }
}

TEST(PerfOptions, TakesEveryWordOfItsHelp) {
  const auto parsed =
      parse({"--ranks",   "2x3",          "--transport", "shm",   "--exchange",      "shared",
             "--model",   "mixtral-8x7b", "--experts",   "16",    "--top-k",         "4",
             "--hidden",  "512",          "--dtype",     "fp8",   "--tokens",        "1:1024:x4",
             "--routing", "zipf:1.2",     "--placement", "block", "--layout",        "packed",
             "--op",      "dispatch",     "--depth",     "4",     "--micro-batches", "2",
             "--combine", "per-expert",   "--input",     "arena", "--wait",          "yield",
             "--iters",   "10",           "--warmup",    "2",     "--bind",          "off",
             "--check",   "off",          "--baseline",  "mpi",   "--json",          "x"});
  ASSERT_TRUE(parsed) << parsed.status().text();
  const Options& o = parsed->options;
  EXPECT_EQ(o.ranks->attention, 2U);
  EXPECT_EQ(o.ranks->expert, 3U);
  EXPECT_EQ(o.exchange, ExchangeKind::shared);
  EXPECT_EQ(o.dtype, DataType::fp8_e4m3);
  EXPECT_EQ(o.tokens, (std::vector<std::uint32_t>{1, 4, 16, 64, 256, 1024}));
  EXPECT_EQ(o.layout, Layout::packed);
  EXPECT_EQ(o.op, Op::dispatch);
  EXPECT_EQ(o.combine, Combine::per_expert);
  EXPECT_EQ(o.input, Input::arena);
  EXPECT_EQ(o.wait, Wait::yield);
  EXPECT_FALSE(o.bind);
  EXPECT_FALSE(o.check);
  EXPECT_EQ(o.baseline, Baseline::mpi);
}

TEST(PerfOptions, TokensAreListsOfRanges) {
  const auto sizes = parse_tokens("1,8,32:128:x4,7");
  ASSERT_TRUE(sizes);
  EXPECT_EQ(*sizes, (std::vector<std::uint32_t>{1, 8, 32, 128, 7}));
}

TEST(PerfOptions, HelpIsNoError) {
  const auto parsed = parse({"--help"});
  ASSERT_TRUE(parsed);
  EXPECT_NE(parsed->text.find("--routing"), std::string::npos);
  EXPECT_EQ(parsed->text.find("--corrupt"), std::string::npos);
}

TEST(PerfOptions, ModelsAndTheirParts) {
  const auto setup = settled({"--model", "qwen3-235b", "--hidden", "64"});
  ASSERT_TRUE(setup) << setup.status().text();
  EXPECT_EQ(setup->experts, 128U);
  EXPECT_EQ(setup->top_k, 8U);
  EXPECT_EQ(setup->hidden, 64U);
}

TEST(PerfOptions, ARoutingFileHoldsUnlessContradicted) {
  const auto setup = settled({"--model", "deepseek-v3", "--routing", demo.c_str()});
  ASSERT_TRUE(setup) << setup.status().text();
  EXPECT_EQ(setup->experts, 128U);
  EXPECT_EQ(setup->hidden, 7168U);
  EXPECT_TRUE(settled({"--routing", demo.c_str(), "--experts", "128", "--top-k", "8"}));
  for (const auto& words : {std::array{"--experts", "256"}, std::array{"--top-k", "4"}}) {
    const auto bad = settled({"--routing", demo.c_str(), words[0], words[1]});
    ASSERT_FALSE(bad);
    EXPECT_EQ(bad.code(), Code::invalid);
    EXPECT_NE(bad.status().text().find(words[0]), std::string::npos) << bad.status().text();
  }
}

TEST(PerfOptions, RefusesContradictions) {
  const World two{0, 2, "open-mpi"};
  const World four{0, 4, "open-mpi"};
  EXPECT_FALSE(settled({"--ranks", "2x2"}, two));
  EXPECT_FALSE(settled({}, World{0, 1, "open-mpi"}));
  EXPECT_FALSE(settled({}, World{0, 3, "pmi"}));
  EXPECT_TRUE(settled({"--ranks", "1x2"}, World{0, 3, "pmi"}));
  EXPECT_FALSE(settled({"--transport", "inproc"}, two));
  EXPECT_FALSE(settled({"--baseline", "mpi"}));
  EXPECT_FALSE(settled({"--baseline", "mpi"}, World{0, 2, "torchrun"}));
  EXPECT_FALSE(settled({"--baseline", "mpi", "--micro-batches", "2"}, two));
  EXPECT_FALSE(settled({"--baseline", "mpi", "--combine", "per-expert"}, two));
  EXPECT_FALSE(settled({"--baseline", "mpi", "--op", "put"}, two));
  EXPECT_TRUE(settled({"--baseline", "mpi", "--tokens", "100000"}, two));
  const auto many = settled({"--baseline", "mpi", "--tokens", "1,200000"}, two);
  ASSERT_FALSE(many);
  EXPECT_NE(many.status().text().find("--tokens = 200000"), std::string::npos);
  EXPECT_FALSE(settled({"--experts", "4", "--top-k", "8"}));
  EXPECT_FALSE(settled({"--routing", "all-to:256"}));
  EXPECT_FALSE(settled({"--routing", "zipf:-1"}));
  EXPECT_FALSE(settled({"--routing", "zipf:"}));
  EXPECT_FALSE(settled({"--routing", "file:/nowhere"}));
  EXPECT_FALSE(settled({"--placement", "file:/nowhere"}));
  EXPECT_FALSE(settled({"--placement", "round"}));
  EXPECT_FALSE(settled({"--micro-batches", "3"}));
  EXPECT_FALSE(settled({"--input", "arena", "--exchange", "push"}));
  EXPECT_FALSE(settled({"--max-tokens", "8", "--layout", "grouped"}));
  EXPECT_FALSE(settled({"--max-tokens", "8", "--input", "arena"}));
  EXPECT_FALSE(settled({"--receive", "early", "--dtype", "fp8"}));
  const auto setup = settled({}, four);
  ASSERT_TRUE(setup);
  EXPECT_EQ(setup->attention_ranks, 2U);
  EXPECT_EQ(setup->expert_ranks, 2U);
}

TEST(PerfSettle, PiecesWhereABatchWouldLeaveTheCaches) {
  const auto setup = settled({});
  ASSERT_TRUE(setup);
  EXPECT_EQ(setup->piece(512), 512U);   // 7 MiB of 14 KiB rows
  EXPECT_EQ(setup->piece(1024), 256U);  // 14 MiB
  EXPECT_EQ(setup->piece(4096), 4096U);
  EXPECT_EQ(setup->channel(1024).max_tokens, 256U);
  const auto given = settled({"--max-tokens", "100"});
  ASSERT_TRUE(given);
  EXPECT_EQ(given->piece(64), 64U);
  EXPECT_EQ(given->piece(4096), 100U);
  const auto grouped = settled({"--layout", "grouped"});
  ASSERT_TRUE(grouped);
  EXPECT_EQ(grouped->piece(1024), 1024U);
}

TEST(PerfPlacement, ReadsRanksPartsAndReplicas) {
  const auto map = parse_placement(R"({"experts": [1, 0, 1, [[[0, 1], [1, 2]], [[1, 3]]]]})", 2);
  ASSERT_TRUE(map) << map.status().text();
  EXPECT_EQ(map->experts(), 4U);
  EXPECT_EQ(map->replicas(2, 0)[0], (Replica{1, 1}));
  EXPECT_EQ(map->parts(3), 2U);
  EXPECT_EQ(map->replicas(3, 0).size(), 2U);
}

TEST(PerfPlacement, RefusesWhatIsNoMap) {
  for (const char* text :
       {"", "[]", "{}", R"({"experts": []})", R"({"experts": [2]})", R"({"experts": [-1]})",
        R"({"experts": ["0"]})", R"({"experts": [[]]})", R"({"experts": [[[]]]})",
        R"({"experts": [[[0, 0]]]})", R"({"experts": [[[[0]]]]})", R"({"experts": [0.5]})",
        R"({"experts": [[[[0, 0], [0, 0]]]]})"}) {
    EXPECT_FALSE(parse_placement(text, 2)) << text;
  }
}

}  // namespace
}  // namespace m2n::perf
