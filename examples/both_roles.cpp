// Classic expert parallelism: every rank is an attention rank and an expert rank (M = N = world).
// One thread per rank does both: serve() answers the others with the expert function while it waits
// for its own replies. Exits non-zero if a sum is wrong.
#include <m2n/m2n.hpp>

#include <array>
#include <cstdio>
#include <thread>
#include <vector>

constexpr std::uint32_t ranks = 4;
constexpr std::uint32_t experts_per_rank = 2;
constexpr std::uint32_t experts = ranks * experts_per_rank;
constexpr std::uint32_t hidden = 8;
constexpr std::uint32_t tokens = 3;
constexpr std::uint32_t top_k = 2;
constexpr std::uint32_t rounds = 5;

m2n::ChannelConfig channel_config() {
  m2n::ChannelConfig config;
  config.experts = experts;
  config.top_k = top_k;
  config.hidden = hidden;
  config.max_tokens = tokens;
  config.payload = config.wire = config.output = m2n::DataType::f32;
  config.combine = m2n::Combine::per_expert;
  return config;
}

// Expert e multiplies by e + 1. Called by serve() for every batch that comes to this rank.
m2n::Status answer(m2n::Channel& channel, m2n::Batch& batch, std::uint32_t rank) {
  std::vector<std::vector<float>> y;
  std::vector<m2n::Outputs> outputs;
  for (const m2n::BatchSource& source : batch.sources()) {
    std::vector<float>& rows = y.emplace_back();
    for (const m2n::Pair& pair : source.pairs) {
      const auto* x = reinterpret_cast<const float*>(source.payload(pair.row));
      const std::uint32_t expert = rank * experts_per_rank + pair.local_expert;
      for (std::uint32_t h = 0; h < hidden; ++h) {
        rows.push_back(x[h] * static_cast<float>(expert + 1));
      }
    }
    outputs.push_back({rows.data()});
  }
  return channel.reply(batch, outputs);
}

m2n::Status one_round(m2n::Channel& channel, std::uint32_t rank, std::uint32_t round) {
  std::array<float, tokens * hidden> x;
  std::array<std::int32_t, tokens * top_k> ids;
  std::array<float, tokens> expected;  // every element of a token's sum
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const auto value = static_cast<float>(rank * 100 + round * 10 + t);
    for (std::uint32_t h = 0; h < hidden; ++h) x[t * hidden + h] = value;
    const std::uint32_t first = (rank + round + t) % experts;
    const std::uint32_t second = (first + 3) % experts;
    ids[t * top_k] = static_cast<std::int32_t>(first);
    ids[t * top_k + 1] = static_cast<std::int32_t>(second);
    expected[t] = value * static_cast<float>(first + second + 2);
  }
  m2n::Dispatch arguments;
  arguments.tokens = tokens;
  arguments.x.base = x.data();
  arguments.ids = ids.data();
  m2n::Result<m2n::Ticket> ticket = channel.dispatch(arguments);
  if (!ticket) return ticket.status();
  std::array<float, tokens * hidden> out{};
  if (m2n::Status status = channel.serve(*ticket, {out.data()}); !status) return status;
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    if (out[i] != expected[i / hidden]) {
      return {m2n::Code::invalid, m2n::Scope::operation, "a sum is wrong"};
    }
  }
  return {};
}

m2n::Status run_rank(std::uint32_t rank, std::shared_ptr<m2n::Store> store) {
  auto group = m2n::Group::create(m2n::GroupConfig::both(ranks, rank), std::move(store));
  if (!group) return group.status();
  m2n::OpenOptions options;
  options.expert_function = [rank](m2n::Channel& channel, m2n::Batch& batch) {
    return answer(channel, batch, rank);
  };
  auto channel = group->open(channel_config(), options);
  if (!channel) return channel.status();
  for (std::uint32_t round = 0; round < rounds; ++round) {
    if (m2n::Status status = one_round(*channel, rank, round); !status) return status;
  }
  return channel->drain();
}

int main() {
  const std::shared_ptr<m2n::Store> store = m2n::make_inproc_store();
  std::array<m2n::Status, ranks> results;
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([r, store, &results] { results[r] = run_rank(r, store); });
  }
  bool right = true;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads[r].join();
    const m2n::Status& status = results[r];
    std::printf("rank %u: %s %s\n", r, m2n::name(status.code()), status.text().c_str());
    right = right && status;
  }
  return right ? 0 : 1;
}
