// The smallest whole m2n program: 2 attention and 2 expert ranks as threads of one process. There
// are 4 experts, and expert e multiplies a vector by e + 1. Each attention rank sends two tokens to
// two experts each, and gets the weighted sums back. Exits non-zero if one of them is wrong.
#include <m2n/m2n.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>
#include <vector>

constexpr std::uint32_t hidden = 4;
constexpr std::uint32_t tokens = 2;
constexpr std::uint32_t top_k = 2;

m2n::ChannelConfig channel_config() {
  m2n::ChannelConfig config;
  config.experts = 4;  // 0 and 1 live on expert rank 0, 2 and 3 on rank 1
  config.top_k = top_k;
  config.hidden = hidden;
  config.max_tokens = tokens;
  config.payload = config.wire = config.output = m2n::DataType::f32;
  return config;
}

bool failed(const char* what, const m2n::Status& status) {
  if (!status) std::fprintf(stderr, "%s: %s\n", what, status.text().c_str());
  return !status;
}

bool attention_rank(m2n::Channel& channel, int rank) {
  const float first = static_cast<float>(10 * rank + 1);  // token t is a vector of (first + t)s
  std::array<float, tokens * hidden> x;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    std::fill_n(x.begin() + t * hidden, hidden, first + static_cast<float>(t));
  }
  const std::array<std::int32_t, tokens * top_k> ids{0, 3, 2, 1};  // token 0: 0 and 3; 1: 2 and 1
  const std::array<float, tokens * top_k> weights{0.5F, 0.5F, 0.75F, 0.25F};

  m2n::Dispatch arguments;
  arguments.tokens = tokens;
  arguments.x.base = x.data();
  arguments.ids = ids.data();
  arguments.weights = weights.data();
  m2n::Result<m2n::Ticket> ticket = channel.dispatch(arguments);
  if (!ticket) return !failed("dispatch", ticket.status());
  // Here an attention rank would work on its next micro-batch.
  std::array<float, tokens * hidden> out{};
  if (failed("combine", channel.combine(*ticket, {out.data()}))) return false;

  const float expected0 = (0.5F * 1 + 0.5F * 4) * first;             // experts 0 and 3
  const float expected1 = (0.75F * 3 + 0.25F * 2) * (first + 1.0F);  // experts 2 and 1
  std::printf("attention rank %d: token 0 = %g (expected %g), token 1 = %g (expected %g)\n", rank,
              out[0], expected0, out[hidden], expected1);
  return out[0] == expected0 && out[hidden] == expected1;
}

bool expert_rank(m2n::Channel& channel, int rank) {
  m2n::Result<m2n::Batch> batch = channel.receive();  // of both attention ranks
  if (!batch) return !failed("receive", batch.status());
  // For each source, one row of y per (token, expert) pair that came to this rank.
  std::vector<std::vector<float>> y;
  std::vector<m2n::Outputs> outputs;
  for (const m2n::BatchSource& source : batch->sources()) {
    std::vector<float>& rows = y.emplace_back();
    for (const m2n::Pair& pair : source.pairs) {
      const auto* vector = reinterpret_cast<const float*>(source.payload(pair.row));
      const auto expert = static_cast<float>(2 * rank) + static_cast<float>(pair.local_expert);
      for (std::uint32_t h = 0; h < hidden; ++h) rows.push_back(vector[h] * (expert + 1.0F));
    }
    outputs.push_back({rows.data()});
  }
  return !failed("reply", channel.reply(*batch, outputs));
}

bool run_rank(std::uint32_t world_rank, std::shared_ptr<m2n::Store> store) {
  const auto config = m2n::GroupConfig::split(2, 2, world_rank);  // 0, 1 attention; 2, 3 experts
  m2n::Result<m2n::Group> group = m2n::Group::create(config, std::move(store));
  if (!group) return !failed("create", group.status());
  m2n::Result<m2n::Channel> channel = group->open(channel_config());
  if (!channel) return !failed("open", channel.status());
  const bool right = config.attention_rank >= 0 ? attention_rank(*channel, config.attention_rank)
                                                : expert_rank(*channel, config.expert_rank);
  return right && !failed("drain", channel->drain());  // nobody leaves while others wait for it
}

int main() {
  const std::shared_ptr<m2n::Store> store = m2n::make_inproc_store();
  std::array<bool, 4> right{};
  std::vector<std::thread> ranks;
  for (std::uint32_t r = 0; r < right.size(); ++r) {
    ranks.emplace_back([r, store, &right] { right[r] = run_rank(r, store); });
  }
  for (std::thread& rank : ranks) rank.join();
  return right == std::array{true, true, true, true} ? 0 : 1;
}
