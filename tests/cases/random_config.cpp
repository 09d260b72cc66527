#include "tests/cases/random_config.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

constexpr DataType payload_types[] = {DataType::bf16,     DataType::f16,      DataType::f32,
                                      DataType::fp8_e4m3, DataType::fp8_e5m2, DataType::i8};
constexpr DataType number_types[] = {DataType::bf16, DataType::f16, DataType::f32};
constexpr Layout layouts[] = {Layout::rows, Layout::grouped, Layout::packed};

Placement random_placement(Random& random, std::uint32_t experts, std::uint32_t ranks) {
  if (random.chance(2)) return Placement::block(experts, ranks);
  std::vector<std::uint32_t> used(ranks);
  std::vector<ExpertParts> map;
  const bool with_parts = random.chance(2);
  const bool with_replicas = random.chance(2);
  for (std::uint32_t e = 0; e < experts; ++e) {
    ExpertParts expert;
    const std::uint32_t parts = with_parts ? random.between(1, 3) : 1;
    for (std::uint32_t p = 0; p < parts; ++p) {
      std::vector<Replica>& replicas = expert.parts.emplace_back();
      const std::uint32_t copies = with_replicas && random.chance(3) ? random.between(2, 4) : 1;
      for (std::uint32_t c = 0; c < copies; ++c) {
        const std::uint32_t rank = random.below(ranks);
        replicas.push_back({rank, used[rank]++});
      }
    }
    map.push_back(std::move(expert));
  }
  return *Placement::make(ranks, map, random.below(5));
}

ChannelConfig random_channel(Random& random, std::uint32_t ranks) {
  const std::uint32_t experts = random.between(1, 64);
  const std::uint32_t top_k = random.between(1, std::min(16u, experts));
  const std::uint32_t hidden = random.chance(3) ? random.between(1, 12) : random.between(1, 700);
  ChannelConfig config = usual_channel(experts, top_k, hidden, random.between(1, 33));
  config.depth = random.between(1, 4);
  config.payload = random.pick(payload_types);
  config.wire = random.pick(number_types);
  config.output = random.pick(number_types);
  for (std::uint32_t i = random.below(3); i > 0; --i) {
    config.extra_row_bytes.push_back(random.between(1, 40));
  }
  config.combine = random.chance(2) ? Combine::reduced : Combine::per_expert;
  config.weights = random.chance(4) ? Weights::caller : Weights::library;
  config.presence = random.chance(3) ? Presence::touched : Presence::every;
  constexpr ExchangeKind kinds[] = {ExchangeKind::automatic, ExchangeKind::push,
                                    ExchangeKind::shared};
  config.exchange = random.pick(kinds);
  config.placement = random_placement(random, experts, ranks);
  config.across_layers = random.chance(2);
  return config;
}

Form random_form(Random& random, const ChannelConfig& config) {
  Form form;
  form.ids64 = random.chance(2);
  form.id_pad = random.chance(2) ? random.below(5) : 0;
  form.weight_pad = random.chance(2) ? random.below(5) : 0;
  form.bf16_weights = random.chance(3);
  form.null_weights = random.chance(6);
  form.x_pad_bytes = random.chance(2) ? random.below(20) * size_of(config.payload) : 0;
  form.x_shift_bytes = random.chance(3) ? size_of(config.payload) : 0;
  form.out_pad_bytes = random.chance(2) ? random.below(9) * size_of(config.output) : 0;
  form.add_pad_bytes = random.chance(2) ? random.below(9) * size_of(config.output) : 0;
  form.y_pad_bytes = random.chance(2) ? random.below(9) * size_of(config.wire) : 0;
  form.y_index = random.chance(2);
  form.own_buffer = random.chance(3);
  form.arena = config.exchange != ExchangeKind::push && random.chance(2);
  return form;
}

float random_number(Random& random) {
  const auto magnitude = static_cast<float>(random.between(0, 1 << 16)) - 32768.0f;
  return std::ldexp(magnitude, static_cast<int>(random.below(24)) - 20);
}

struct InputRules {
  bool same_tokens = false;  // shards of one batch
  bool addend = false;
  bool wild_values = false;
  bool unit_weights = false;
  bool bf16_weights = false;
  std::uint32_t holes = 0;  // one id in so many is -1; 0 = none
  std::uint32_t twins = 0;  // one id in so many repeats its neighbour; 0 = none
};

reference::Inputs random_inputs(const ChannelConfig& config, const InputRules& rules,
                                std::uint64_t seed) {
  Random random{seed};
  const std::uint32_t tokens = random.chance(5) ? 0 : random.between(0, config.max_tokens);
  reference::Inputs inputs = standard_inputs(config, static_cast<std::uint32_t>(seed % 200), tokens,
                                             static_cast<std::uint32_t>(seed >> 16) % 1000);
  const std::size_t size = size_of(config.payload);
  for (std::size_t i = 0; rules.wild_values && i < inputs.x.size() / size; ++i) {
    const float value =
        random.chance(97) ? std::numeric_limits<float>::infinity() : random_number(random);
    put_element(size == 1 ? static_cast<float>(random.below(256)) - 128.0f : value, config.payload,
                inputs.x.data() + i * size);
  }
  for (std::size_t i = 0; i < inputs.ids.size(); ++i) {
    if (rules.twins != 0 && i % config.top_k != 0 && random.chance(rules.twins)) {
      inputs.ids[i] = inputs.ids[i - 1];
    }
    if (rules.holes != 0 && random.chance(rules.holes)) inputs.ids[i] = -1;
    float weight = random.chance(9) ? 0.0f : random_number(random);
    if (rules.unit_weights) weight = 1.0f;
    if (rules.bf16_weights) {
      std::byte bits[2];
      reference::from_float(weight, DataType::bf16, bits);
      weight = reference::to_float(bits, DataType::bf16);
    }
    inputs.weights[i] = weight;
  }
  if (rules.addend) {
    inputs.addend.resize(std::size_t{tokens} * config.hidden * size_of(config.output));
    for (std::size_t i = 0; i < std::size_t{tokens} * config.hidden; ++i) {
      reference::from_float(random_number(random), config.output,
                            inputs.addend.data() + i * size_of(config.output));
    }
  }
  return inputs;
}

}  // namespace

Scenario random_scenario(std::uint64_t seed) {
  Random random{seed};
  Scenario scenario;
  RankSet& ranks = scenario.ranks;
  ranks.attention = random.chance(2) ? random.between(1, 3) : random.between(1, 8);
  ranks.experts = random.chance(2) ? random.between(1, 3) : random.between(1, 8);
  ranks.both = random.chance(6);
  if (ranks.both) ranks.experts = ranks.attention;
  ranks.transport = random.chance(3) ? "shm" : "inproc";
  scenario.channel = random_channel(random, ranks.experts);
  if (ranks.both) scenario.channel.presence = Presence::every;
  scenario.use_serve = ranks.both && random.chance(2);
  scenario.form = random_form(random, scenario.channel);
  scenario.steps = random.between(1, 7);
  scenario.early = random.chance(3);
  scenario.in_flight = ranks.both ? 1 : random.between(1, scenario.channel.depth);
  scenario.newest_first = random.chance(3);
  scenario.min_sources = random.between(1, ranks.attention);
  InputRules rules;
  rules.same_tokens = random.chance(5);
  rules.addend = random.chance(2);
  rules.wild_values = random.chance(2);
  rules.unit_weights = scenario.form.null_weights;
  rules.bf16_weights = scenario.form.bf16_weights;
  rules.holes = random.below(5);
  rules.twins = random.below(5);
  const std::uint32_t shards = rules.same_tokens ? ranks.attention : 1;
  std::vector<Layout> layout(ranks.experts);
  for (Layout& one : layout) one = random.pick(layouts);
  const std::uint32_t alignment = random.pick({1u, 4u, 16u, 7u});
  scenario.local = [=](ChannelConfig& config, const GroupConfig& group) {
    if (group.attention_rank >= 0 && shards > 1) {
      config.shard_index = static_cast<std::uint32_t>(group.attention_rank);
      config.shard_count = shards;
    }
    if (group.expert_rank >= 0) {
      config.layout = layout[static_cast<std::size_t>(group.expert_rank)];
      config.packed_alignment = alignment;
    }
  };
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    const std::uint32_t who = rules.same_tokens ? 0 : a;
    reference::Inputs inputs = random_inputs(config, rules, (seed * 64 + who) * 65'536 + step);
    inputs.micro_batch = step;  // in lockstep all ranks name the same
    inputs.layer = step % 5;
    return inputs;
  };
  return scenario;
}

std::string describe(const Scenario& scenario) {
  const ChannelConfig& c = scenario.channel;
  const Form& f = scenario.form;
  std::string text = scenario.ranks.transport;
  const auto add = [&](const char* label, std::uint64_t value) {
    text.append(" ").append(label).append("=").append(std::to_string(value));
  };
  add("M", scenario.ranks.attention);
  add("N", scenario.ranks.experts);
  add("both", scenario.ranks.both);
  add("serve", scenario.use_serve);
  add("E", c.experts);
  add("K", c.top_k);
  add("H", c.hidden);
  add("max", c.max_tokens);
  add("depth", c.depth);
  add("in_flight", scenario.in_flight);
  add("early", scenario.early);
  add("newest_first", scenario.newest_first);
  add("steps", scenario.steps);
  add("touched", c.presence == Presence::touched);
  add("per_expert", c.combine == Combine::per_expert);
  add("caller_weights", c.weights == Weights::caller);
  add("exchange", static_cast<std::uint64_t>(c.exchange));
  add("extra", c.extra_row_bytes.size());
  add("parts", c.placement.max_parts());
  add("replicated", c.placement.replicated());
  add("arena", f.arena);
  add("own_buffer", f.own_buffer);
  text.append(" ").append(name(c.payload)).append("/").append(name(c.wire));
  return text.append("/").append(name(c.output));
}

}  // namespace m2n::testing
