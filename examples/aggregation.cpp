// Expert ranks that serve whoever has come, as a decoding pool does: with Presence::touched only
// the expert ranks that get a token hear of an operation, attention ranks need not keep pace with
// each other, and receive() gathers what is there. Three attention ranks send different numbers of
// operations to two expert ranks; each checks its sums. Exits non-zero if one is wrong.
#include <m2n/m2n.hpp>

#include <array>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

constexpr std::uint32_t attention_ranks = 3;
constexpr std::uint32_t expert_ranks = 2;
constexpr std::uint32_t hidden = 8;
constexpr std::uint32_t max_tokens = 4;

struct Job {
  std::shared_ptr<m2n::Store> store = m2n::make_inproc_store();
  std::atomic<std::uint32_t> attention_running{attention_ranks};
  std::atomic<bool> right{true};

  bool check(bool condition, const char* what, const m2n::Status& status = {}) {
    if (condition) return true;
    std::fprintf(stderr, "%s: %s %s\n", what, m2n::name(status.code()), status.text().c_str());
    right = false;
    return false;
  }
};

m2n::ChannelConfig channel_config() {
  m2n::ChannelConfig config;
  config.experts = expert_ranks;  // one each
  config.hidden = hidden;
  config.max_tokens = max_tokens;
  config.payload = config.wire = config.output = m2n::DataType::f32;
  config.presence = m2n::Presence::touched;
  return config;
}

// Rank r sends r + 1 operations. All tokens of one go to the same expert, so the other expert rank
// never hears of it.
void attention_rank(Job& job, m2n::Channel& channel, std::uint32_t rank) {
  for (std::uint32_t operation = 0; operation <= rank; ++operation) {
    const std::uint32_t tokens = 1 + (rank + operation) % max_tokens;
    const auto expert = static_cast<std::int32_t>(operation % expert_ranks);
    const std::vector<float> x(tokens * hidden, static_cast<float>(10 * rank + operation));
    const std::vector<std::int32_t> ids(tokens, expert);
    m2n::Dispatch arguments;
    arguments.tokens = tokens;
    arguments.x.base = x.data();
    arguments.ids = ids.data();  // no weights: 1 everywhere
    m2n::Result<m2n::Ticket> ticket = channel.dispatch(arguments);
    if (!job.check(bool{ticket}, "dispatch", ticket.status())) return;
    std::vector<float> out(tokens * hidden);
    const m2n::Status status = channel.combine(*ticket, {out.data()});
    if (!job.check(bool{status}, "combine", status)) return;
    for (const float value : out) {
      job.check(value == x[0] + static_cast<float>(expert + 1), "wrong sum");
    }
  }
}

// Expert e adds e + 1. Serves until no attention rank is left; a serving system would have its own
// signal to stop.
void expert_rank(Job& job, m2n::Channel& channel, std::uint32_t rank) {
  // Best with all three, but after 2 ms whoever has come is enough.
  m2n::ReceivePolicy policy;
  policy.min_sources = attention_ranks;
  policy.max_wait = std::chrono::milliseconds{2};
  std::uint32_t batches = 0;
  std::uint32_t sources = 0;
  while (job.attention_running > 0) {
    m2n::Result<m2n::Batch> batch =
        channel.receive(m2n::Timeout{std::chrono::milliseconds{20}}, policy);
    if (batch.code() == m2n::Code::timeout) continue;  // nobody at all: look whether to stop
    if (!job.check(bool{batch}, "receive", batch.status())) return;
    std::vector<std::vector<float>> y;
    std::vector<m2n::Outputs> outputs;
    for (const m2n::BatchSource& source : batch->sources()) {
      std::vector<float>& rows = y.emplace_back();
      for (const m2n::Pair& pair : source.pairs) {
        const auto* vector = reinterpret_cast<const float*>(source.payload(pair.row));
        for (std::uint32_t h = 0; h < hidden; ++h) {
          rows.push_back(vector[h] + static_cast<float>(rank + 1));
        }
      }
      outputs.push_back({rows.data()});
    }
    ++batches;
    sources += static_cast<std::uint32_t>(outputs.size());
    const m2n::Status status = channel.reply(*batch, outputs);
    if (!job.check(bool{status}, "reply", status)) return;
  }
  std::printf("expert rank %u: %u operations in %u batches\n", rank, sources, batches);
  // Operations of rank r: r / 2 + 1 to expert 0, (r + 1) / 2 to expert 1.
  job.check(sources == (rank == 0 ? 4u : 2u), "wrong number of operations");
}

void run_rank(Job& job, std::uint32_t world_rank) {
  const bool attention = world_rank < attention_ranks;
  m2n::Result<m2n::Group> group = m2n::Group::create(
      m2n::GroupConfig::split(attention_ranks, expert_ranks, world_rank), job.store);
  if (!job.check(bool{group}, "create", group.status())) return;
  m2n::Result<m2n::Channel> channel = group->open(channel_config());
  if (!job.check(bool{channel}, "open", channel.status())) return;
  if (attention) {
    attention_rank(job, *channel, world_rank);
    --job.attention_running;
  } else {
    expert_rank(job, *channel, world_rank - attention_ranks);
  }
  // Nobody closes while others still work: that would be an error to them.
  const m2n::Status status = channel->drain();
  job.check(bool{status}, "drain", status);
}

int main() {
  Job job;
  std::vector<std::thread> ranks;
  for (std::uint32_t r = 0; r < attention_ranks + expert_ranks; ++r) {
    ranks.emplace_back([&job, r] { run_rank(job, r); });
  }
  for (std::thread& rank : ranks) rank.join();
  std::printf("%s\n", job.right ? "every sum is right" : "WRONG");
  return job.right ? 0 : 1;
}
