#include "tests/threads/lanes.hpp"

#include <algorithm>
#include <thread>

namespace m2n::testing {

ChannelConfig lane_config(std::uint32_t experts, const char* name) {
  ChannelConfig config;
  config.name = name;
  config.experts = experts;
  config.hidden = lane_hidden;
  config.max_tokens = lane_tokens;
  config.payload = config.wire = config.output = DataType::f32;
  return config;
}

std::vector<Group> make_groups(std::uint32_t ranks, std::uint32_t workers,
                               const std::function<void(GroupConfig&)>& adjust) {
  std::vector<Group> groups(ranks);
  const std::shared_ptr<Store> store = make_inproc_store();
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      GroupConfig config = GroupConfig::both(ranks, rank);
      config.workers = workers;
      if (adjust) adjust(config);
      Result<Group> group = Group::create(config, store);
      if (group) groups[rank] = std::move(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const bool all =
      std::all_of(groups.begin(), groups.end(), [](const Group& g) { return bool{g}; });
  return all ? std::move(groups) : std::vector<Group>{};
}

std::vector<Channel> open_everywhere(std::vector<Group>& groups, const ChannelConfig& config,
                                     const OpenOptions& options) {
  std::vector<Channel> channels(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Result<Channel> channel = groups[rank].open(config, options);
      if (channel) channels[rank] = std::move(*channel);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const bool all =
      std::all_of(channels.begin(), channels.end(), [](const Channel& c) { return bool{c}; });
  return all ? std::move(channels) : std::vector<Channel>{};
}

Result<Ticket> send(Channel& channel, float value) {
  const std::vector<float> x(std::size_t{lane_tokens} * lane_hidden, value);
  std::vector<std::int32_t> ids(lane_tokens);
  for (std::uint32_t t = 0; t < lane_tokens; ++t) {
    ids[t] = static_cast<std::int32_t>(t % channel.config().experts);
  }
  Dispatch dispatch;
  dispatch.tokens = lane_tokens;
  dispatch.x = {x.data()};
  dispatch.ids = ids.data();
  return channel.dispatch(dispatch);
}

bool take_back(Channel& channel, Ticket& ticket, float value) {
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden, -1.0f);
  if (!channel.combine(ticket, {out.data()})) return false;
  return std::all_of(out.begin(), out.end(), [&](float y) { return y == 2 * value; });
}

Status answer(Channel& channel) {
  Result<Batch> batch = channel.receive();
  return batch ? double_batch(channel, *batch) : batch.status();
}

Status double_batch(Channel& channel, Batch& batch) {
  std::vector<std::vector<float>> y;
  std::vector<Outputs> outputs;
  for (const BatchSource& source : batch.sources()) {
    std::vector<float>& rows = y.emplace_back(source.pairs.size() * lane_hidden);
    for (std::size_t p = 0; p < source.pairs.size(); ++p) {
      const auto* x = reinterpret_cast<const float*>(source.payload(source.pairs[p].row));
      for (std::size_t h = 0; h < lane_hidden; ++h) rows[p * lane_hidden + h] = 2 * x[h];
    }
    outputs.push_back({rows.data()});
  }
  return channel.reply(batch, outputs);
}

}  // namespace m2n::testing
