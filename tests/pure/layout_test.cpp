// Windows and slots: 2000 random configurations and sizes against wide arithmetic. Pure, one
// thread.
#include "collectives/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "collectives/control.hpp"
#include "collectives/slot.hpp"
#include "tests/pure/random_map.hpp"

namespace m2n::testing {
namespace {

using namespace collectives;

__extension__ using Wide = unsigned __int128;
constexpr Wide limit = ~std::size_t{0};

Wide up(Wide value, Wide to) {
  return (value + to - 1) / to * to;
}

constexpr DataType payloads[] = {DataType::bf16,     DataType::f16,      DataType::f32,
                                 DataType::fp8_e4m3, DataType::fp8_e5m2, DataType::i8};
constexpr DataType wires[] = {DataType::bf16, DataType::f16, DataType::f32};

ChannelConfig random_config(Random& random, std::uint32_t most_hidden, std::uint32_t most_tokens) {
  ChannelConfig config;
  config.placement = random_placement(random);
  config.experts = config.placement.experts();
  config.top_k = random.between(1, std::min(config.experts, 16u));
  config.hidden = random.between(1, most_hidden);
  config.max_tokens = random.between(1, most_tokens);
  config.depth = random.between(1, 16);
  config.payload = random.pick(payloads);
  config.wire = random.pick(wires);
  config.combine = random.chance(2) ? Combine::reduced : Combine::per_expert;
  config.exchange = random.chance(2) ? ExchangeKind::shared : ExchangeKind::automatic;
  for (std::uint32_t i = random.below(4); i > 0; --i) {
    config.extra_row_bytes.push_back(random.between(1, 300));
  }
  return config;
}

void expect_rows_fit(const ChannelConfig& config) {
  const Result<RowGeometry> row = row_geometry(config);
  ASSERT_TRUE(bool(row));
  ASSERT_EQ(row->offsets_bytes.size(), config.extra_row_bytes.size() + 1);
  EXPECT_EQ(row->sizes_bytes[0], config.hidden * size_of(config.payload));
  std::size_t end = 0;
  for (std::size_t i = 0; i < row->offsets_bytes.size(); ++i) {
    EXPECT_GE(row->offsets_bytes[i], end) << "arrays overlap";
    EXPECT_EQ(row->offsets_bytes[i] % 16, 0u);
    if (i > 0) {
      EXPECT_EQ(row->sizes_bytes[i], config.extra_row_bytes[i - 1]);
    }
    end = row->offsets_bytes[i] + row->sizes_bytes[i];
  }
  EXPECT_EQ(row->stride_bytes % 64, 0u);
  EXPECT_GE(row->stride_bytes, end);
  EXPECT_LT(row->stride_bytes, end + 64);
}

void expect_slots_fit(const WindowLayout& layout, const ChannelConfig& config, std::uint32_t peers,
                      bool by_index) {
  // The last byte of the largest round lies in its slot, wherever its rows are.
  const std::size_t info = info_bytes(layout.max_rows, layout.max_entries);
  const std::size_t body =
      info + (by_index ? index_bytes(layout.max_rows) : layout.max_rows * layout.row_bytes);
  EXPECT_LE(body, layout.max_body_bytes);
  EXPECT_LE(sizeof(SlotHeader) + layout.max_body_bytes, layout.slot_bytes);
  // It is not wasteful: rotation, or the round, and a page.
  const std::size_t rotation = rotation_bytes / (std::size_t{peers} * config.depth);
  EXPECT_GE(layout.slot_bytes, sizeof(SlotHeader) + rotation);
  EXPECT_LT(layout.slot_bytes,
            sizeof(SlotHeader) + std::max(layout.max_body_bytes, rotation) + 4096);
  // Slots follow the control block and each other.
  EXPECT_EQ(layout.depth, config.depth);
  EXPECT_GE(layout.control_bytes, sizeof(ControlBlock));
  EXPECT_EQ(layout.control_bytes % 64, 0u);
  EXPECT_EQ(layout.slot_bytes % 4096, 0u);
  for (std::uint64_t round = 0; round < 2 * config.depth; ++round) {
    const std::size_t offset = layout.slot_offset(round);
    EXPECT_EQ(offset, layout.control_bytes + round % config.depth * layout.slot_bytes);
    EXPECT_LE(offset + layout.slot_bytes, layout.window_bytes());
  }
}

TEST(Layout, RandomConfigurationsFit) {
  Random random{17};
  for (int i = 0; i < 2000 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const ChannelConfig config = random_config(random, 5000, 700);
    const std::uint32_t peers = random.between(1, 70);
    expect_rows_fit(config);
    const Result<WindowLayout> out = dispatch_window(config, peers);
    ASSERT_TRUE(bool(out));
    EXPECT_EQ(out->max_rows, config.max_tokens);
    EXPECT_EQ(out->max_entries,
              std::size_t{config.max_tokens} * config.top_k * config.placement.max_parts());
    expect_slots_fit(*out, config, peers, config.exchange == ExchangeKind::shared);
    EXPECT_EQ(out->row_bytes, row_geometry(config)->stride_bytes);
    const std::uint32_t local = config.placement.local_experts(0);
    const Result<WindowLayout> back = reply_window(config, peers, local);
    ASSERT_TRUE(bool(back));
    const std::size_t rows_per_token =
        config.combine == Combine::reduced
            ? 1
            : std::min<std::size_t>(config.top_k * config.placement.max_parts(), local);
    EXPECT_EQ(back->max_rows, config.max_tokens * rows_per_token);
    EXPECT_GE(back->row_bytes, config.hidden * size_of(config.wire));
    EXPECT_EQ(back->row_bytes % 64, 0u);
    expect_slots_fit(*back, config, peers, false);
  }
}

// The dispatch window's rule in wide arithmetic.
Wide wide_window(const ChannelConfig& config, std::uint32_t peers) {
  Wide row = Wide{config.hidden} * size_of(config.payload);
  for (const std::uint32_t bytes : config.extra_row_bytes) row = up(row, 16) + bytes;
  const Wide tokens = config.max_tokens;
  const Wide entries = tokens * config.top_k * config.placement.max_parts();
  const Wide rows =
      config.exchange == ExchangeKind::shared ? up(tokens * 4, 64) : tokens * up(row, 64);
  const Wide body = up((tokens + 1) * 8 + entries * 8, 64) + rows;
  const Wide rotation = (Wide{4} << 20) / (Wide{peers} * config.depth);
  return sizeof(ControlBlock) + config.depth * up(64 + std::max(body, rotation), 4096);
}

TEST(Layout, SizesAreExactOrRefused) {
  Random random{18};
  std::size_t refused = 0;
  std::size_t large = 0;
  for (int i = 0; i < 2000; ++i) {
    ChannelConfig config = random_config(random, ~0u, ~0u);
    if (random.chance(2)) config.hidden >>= random.below(31);
    if (random.chance(2)) config.max_tokens >>= random.below(31);
    config.hidden = std::max(config.hidden, 1u);
    config.max_tokens = std::max(config.max_tokens, 1u);
    const std::uint32_t peers = random.between(1, 65536);
    const Wide want = wide_window(config, peers);
    const Result<WindowLayout> layout = dispatch_window(config, peers);
    if (want > limit) {
      ++refused;
      ASSERT_FALSE(bool(layout));
      EXPECT_EQ(layout.code(), Code::exhausted);
      EXPECT_NE(layout.status().text().find("max_tokens"), std::string::npos);
      continue;
    }
    ASSERT_TRUE(bool(layout)) << layout.status().text();
    EXPECT_TRUE(Wide{layout->window_bytes()} == want);
    large += want >> 32 != 0 ? 1 : 0;
  }
  EXPECT_GT(refused, 20u) << "this test has to reach the limit";
  EXPECT_GT(large, 200u);
}

TEST(Layout, GroupedSizesAreExactOrRefused) {
  Random random{19};
  std::size_t refused = 0;
  for (int i = 0; i < 2000; ++i) {
    ChannelConfig config = random_config(random, i % 2 == 0 ? 5000 : ~0u, i % 2 == 0 ? 700 : ~0u);
    config.layout = random.chance(2) ? Layout::grouped : Layout::packed;
    config.capacity = random.chance(3) ? random.between(1, 1000) : 0;
    config.packed_alignment = random.between(1, 130);
    const std::uint32_t ranks = random.between(1, 100);
    const std::uint32_t local = random.below(40);
    const Wide tokens = Wide{config.max_tokens} * ranks;
    Wide rows = local * (config.capacity != 0 ? Wide{config.capacity} : tokens);
    if (config.layout == Layout::packed) {
      // No token has more pairs here than it has choices, or than this rank has experts.
      const Wide each = std::min<Wide>(Wide{config.top_k} * config.placement.max_parts(), local);
      rows = tokens * each + Wide{local} * (config.packed_alignment - 1);
    }
    Wide row = Wide{config.hidden} * size_of(config.payload);
    for (const std::uint32_t bytes : config.extra_row_bytes) row = up(row, 16) + bytes;
    const Wide want = rows * up(row, 64);
    const Result<GroupedLayout> layout = grouped_layout(config, ranks, local);
    if (want > limit || rows > ~0u) {
      ++refused;
      EXPECT_EQ(layout.code(), want > limit ? Code::exhausted : Code::invalid);
      continue;
    }
    ASSERT_TRUE(bool(layout)) << layout.status().text();
    EXPECT_TRUE(Wide{layout->rows} == rows);
    EXPECT_TRUE(Wide{layout->bytes} == want);
  }
  EXPECT_GT(refused, 10u);
}

}  // namespace
}  // namespace m2n::testing
