// I-18 and I-55: what channel_sizes says is exact, covers the layout, and is not wasteful. Pure.
#include <gtest/gtest.h>

#include <algorithm>

#include "collectives/layout.hpp"
#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

__extension__ using Wide = unsigned __int128;

// The layout's rule in wide arithmetic, written down a second time.
struct WideSizes {
  Wide row = 0, reply_row = 0, dispatch_body = 0, reply_body = 0;  // of the largest round
  Wide attention_window = 0, expert_window = 0;                    // without any padding
  Wide attention_staging = 0, expert_staging = 0;
};

Wide up(Wide value, Wide to) {
  return (value + to - 1) / to * to;
}

WideSizes wide_sizes(const ChannelConfig& config, std::uint32_t m, std::uint32_t n) {
  const Placement placement =
      config.placement ? config.placement : Placement::block(config.experts, n);
  WideSizes sizes;
  sizes.row = Wide{config.hidden} * size_of(config.payload);
  for (const std::uint32_t bytes : config.extra_row_bytes) sizes.row = up(sizes.row, 16) + bytes;
  sizes.row = up(sizes.row, 64);
  sizes.reply_row = up(Wide{config.hidden} * size_of(config.wire), 64);
  const Wide entries = Wide{config.max_tokens} * config.top_k * placement.max_parts();
  sizes.dispatch_body = up((Wide{config.max_tokens} + 1) * 8 + entries * 8, 64);
  sizes.dispatch_body += config.exchange == ExchangeKind::shared
                             ? up(Wide{config.max_tokens} * 4, 64)
                             : Wide{config.max_tokens} * sizes.row;
  std::uint32_t local = 0;
  for (std::uint32_t r = 0; r < n; ++r) local = std::max(local, placement.local_experts(r));
  Wide rows = config.max_tokens;
  if (config.combine == Combine::per_expert) {
    rows *= std::min<Wide>(Wide{config.top_k} * placement.max_parts(), local);
  }
  sizes.reply_body = rows * sizes.reply_row;
  const Wide rotation = Wide{4} << 20;
  const Wide dispatch_slots =
      config.depth * std::max(sizes.dispatch_body, rotation / n / config.depth);
  const Wide reply_slots = config.depth * std::max(sizes.reply_body, rotation / m / config.depth);
  sizes.expert_window = m * dispatch_slots;
  sizes.attention_window = n * reply_slots;
  sizes.expert_staging = m * reply_slots;
  sizes.attention_staging = n * dispatch_slots;
  return sizes;
}

// used <= told <= 1.2 used + 64 KiB per pair, or `exhausted` if it cannot be told.
void expect_sizes(const ChannelConfig& config, std::uint32_t m, std::uint32_t n) {
  const WideSizes want = wide_sizes(config, m, n);
  const Result<ChannelSizes> sizes = channel_sizes(config, m, n);
  const Wide limit = ~std::size_t{0};
  if (!sizes) {
    EXPECT_EQ(sizes.code(), Code::exhausted) << sizes.status().text();
    EXPECT_TRUE(std::max({want.attention_window, want.expert_window, want.attention_staging,
                          want.expert_staging}) *
                    2 >
                limit);
    return;
  }
  ASSERT_TRUE(Wide{sizes->row_bytes} == want.row);
  ASSERT_TRUE(Wide{sizes->reply_row_bytes} == want.reply_row);
  ASSERT_TRUE(Wide{sizes->dispatch_slot_bytes} >= want.dispatch_body + 64);
  ASSERT_TRUE(Wide{sizes->reply_slot_bytes} >= want.reply_body + 64);
  ASSERT_TRUE(Wide{sizes->attention_window_bytes} >=
              Wide{n} * config.depth * sizes->reply_slot_bytes);
  ASSERT_TRUE(Wide{sizes->expert_window_bytes} >=
              Wide{m} * config.depth * sizes->dispatch_slot_bytes);
  ASSERT_TRUE(Wide{sizes->attention_window_bytes} <=
              want.attention_window * 12 / 10 + Wide{n} * 65536);
  ASSERT_TRUE(sizes->attention_bytes ==
              sizes->attention_window_bytes + sizes->arena_bytes + sizes->attention_host_bytes);
  ASSERT_EQ(sizes->expert_bytes, sizes->expert_window_bytes + sizes->expert_host_bytes);
  ASSERT_EQ(sizes->arena_bytes != 0, config.exchange != ExchangeKind::push);
  ASSERT_TRUE(Wide{sizes->expert_window_bytes} <= want.expert_window * 12 / 10 + Wide{m} * 65536);
}

TEST(I18, SizesAgreeWithWideArithmetic) {
  for (const std::uint32_t tokens : {1u, 65535u, 65536u, 131072u, 1u << 20, 1u << 24}) {
    for (const std::uint32_t h : {64u, 7168u, 16384u, 1u << 24}) {
      for (const std::uint32_t ranks : {2u, 64u, 1024u, 65536u}) {
        for (const Combine mode : {Combine::reduced, Combine::per_expert}) {
          ChannelConfig config = usual_channel(1024, 8, h, tokens);
          config.combine = mode;
          config.payload = config.wire = DataType::f32;
          expect_sizes(config, ranks, ranks);
          config.depth = 16;
          config.top_k = 128;
          expect_sizes(config, ranks, 1);
        }
      }
    }
  }
}

TEST(I18, OffsetsDoNotWrap) {
  ChannelConfig config = usual_channel(64, 8, 7168, 131072);
  config.placement = Placement::block(64, 64);
  config.depth = 16;
  const Result<collectives::WindowLayout> layout = collectives::dispatch_window(config, 64);
  ASSERT_TRUE(bool(layout));
  for (std::uint64_t round = 0; round < 40; ++round) {
    const Wide want = Wide{layout->control_bytes} + Wide{round % config.depth} * layout->slot_bytes;
    EXPECT_TRUE(Wide{layout->slot_offset(round)} == want);
  }
  const std::uint64_t far = ~std::uint64_t{0} - 5;
  EXPECT_EQ(layout->slot_offset(far), layout->slot_offset(far % config.depth));
  EXPECT_GT(layout->slot_offset(15), std::size_t{1} << 34);  // 15 x 1.9 GB
}

TEST(I55, SizesOfRandomConfigurations) {
  Random random{55};
  constexpr DataType payloads[] = {DataType::bf16,     DataType::f16,      DataType::f32,
                                   DataType::fp8_e4m3, DataType::fp8_e5m2, DataType::i8};
  constexpr DataType wires[] = {DataType::bf16, DataType::f16, DataType::f32};
  for (int i = 0; i < 2000; ++i) {
    const std::uint32_t experts = random.between(1, 64);
    ChannelConfig config = usual_channel(experts, random.between(1, std::min(16u, experts)),
                                         random.between(1, 4097), random.between(1, 999));
    config.payload = random.pick(payloads);
    config.wire = random.pick(wires);
    config.depth = random.between(1, 4);
    config.combine = random.chance(2) ? Combine::reduced : Combine::per_expert;
    config.exchange = random.chance(2) ? ExchangeKind::shared : ExchangeKind::automatic;
    for (std::uint32_t extra = random.below(3); extra > 0; --extra) {
      config.extra_row_bytes.push_back(random.between(1, 300));
    }
    expect_sizes(config, random.between(1, 16), random.between(1, 16));
    if (HasFatalFailure()) return;
  }
}

// DeepSeek-V3 between 64 and 64 ranks: what one rank of each role needs.
TEST(I55, A64By64GroupFitsItsRanks) {
  constexpr std::size_t mib = 1 << 20;
  ChannelConfig config = usual_channel(256, 8, 7168, 128);
  Result<ChannelSizes> push = channel_sizes(config, 64, 64);
  ASSERT_TRUE(bool(push)) << push.status().text();
  EXPECT_LE(push->attention_bytes, 256 * mib);
  EXPECT_LE(push->expert_bytes, 256 * mib);
  config.exchange = ExchangeKind::shared;
  Result<ChannelSizes> shared = channel_sizes(config, 64, 64);
  ASSERT_TRUE(bool(shared)) << shared.status().text();
  EXPECT_LE(shared->attention_bytes, 256 * mib);
  EXPECT_LE(shared->expert_bytes, 16 * mib);
  EXPECT_GE(shared->dispatch_slot_bytes, (4 * mib) / (64 * 2)) << "bodies still rotate";
}

// The worst case in memory of exactly the size that is needed, and one byte less.
TEST(I55, ABufferOfExactlyTheRightSize) {
  for (const Layout layout : {Layout::grouped, Layout::packed}) {
    Scenario scenario;
    scenario.ranks.attention = 2;
    scenario.channel = usual_channel(4, 2, 33, 7);
    scenario.channel.layout = layout;
    scenario.channel.packed_alignment = 5;
    scenario.channel.placement = Placement::block(4, 1);
    const ChannelConfig config = scenario.channel;
    scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
      reference::Inputs inputs = standard_inputs(config, a, 7, step);
      for (std::size_t i = 0; i < inputs.ids.size(); ++i) inputs.ids[i] = static_cast<int>(i % 2);
      return inputs;
    };
    const Expected expected = expect(scenario);
    // grouped: 4 experts x 14 rows; packed: two experts with 14 rows, padded to 15.
    const std::size_t rows = layout == Layout::grouped ? 56 : 30;
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.attends()) {
        EXPECT_TRUE(run_attention(scenario, expected, rank, *channel));
      } else {
        const std::size_t bytes = rows * channel->row_format().stride_bytes;
        std::unique_ptr<std::byte[]> memory{new (std::align_val_t{64}) std::byte[bytes]};
        ReceivePolicy policy;
        policy.buffer = {memory.get(), bytes - 1};
        const Status refused = channel->receive({}, policy).status();
        EXPECT_EQ(refused.code(), Code::exhausted) << refused.text();
        for (const std::size_t number : {bytes, bytes - 1}) {
          EXPECT_NE(refused.text().find(std::to_string(number)), std::string::npos)
              << refused.text();
        }
        policy.buffer = {memory.get(), bytes};
        Result<Batch> batch = channel->receive({}, policy);
        ASSERT_TRUE(bool(batch)) << batch.status().text();
        EXPECT_EQ(batch->grouped().base, memory.get());
        const ExpertSide side{&scenario, &channel->config(), &expected, 0,
                              identities(scenario.channel.placement, 0)};
        EXPECT_EQ(check_batch(side, *channel, *batch), "");
        EXPECT_TRUE(bool(answer(side, *batch, *channel)));
        ::operator delete[](memory.release(), std::align_val_t{64});
      }
      EXPECT_TRUE(bool(channel->drain()));
    });
  }
}

// I-11: a capacity that overflows is told, and the batch can still be taken as rows.
TEST(I11, OverflowingCapacity) {
  Scenario scenario;
  scenario.ranks.attention = 2;
  scenario.channel = usual_channel(4, 1, 32, 16);
  scenario.channel.layout = Layout::grouped;
  scenario.channel.capacity = 16;
  scenario.channel.placement = Placement::block(4, 1);
  scenario.steps = 3;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    reference::Inputs inputs = standard_inputs(config, a, 16, step);
    std::fill(inputs.ids.begin(), inputs.ids.end(), 2);
    return inputs;
  };
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.attends()) {
      EXPECT_TRUE(run_attention(scenario, expected, rank, *channel));
      EXPECT_TRUE(bool(channel->drain()));
      return;
    }
    ChannelConfig as_rows_config = channel->config();
    as_rows_config.layout = Layout::rows;
    const ExpertSide side{&scenario, &as_rows_config, &expected, 0,
                          identities(scenario.channel.placement, 0)};
    for (std::uint32_t s = 0; s < scenario.steps; ++s) {
      const Status full = channel->receive().status();
      EXPECT_EQ(full.code(), Code::exhausted);
      for (const char* part : {"expert 2", "32", "16", "capacity"}) {
        EXPECT_NE(full.text().find(part), std::string::npos) << full.text();
      }
      ReceivePolicy policy;
      policy.as_rows = true;
      Result<Batch> batch = channel->receive({}, policy);
      ASSERT_TRUE(bool(batch)) << batch.status().text();
      EXPECT_EQ(check_batch(side, *channel, *batch), "");
      EXPECT_TRUE(bool(answer(side, *batch, *channel)));
    }
    EXPECT_TRUE(bool(channel->drain()));
  });
}

}  // namespace
}  // namespace m2n::testing
