#include "tests/cases/scenario.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

ChannelConfig local_config(const Scenario& scenario, const GroupConfig& group) {
  ChannelConfig config = scenario.channel;
  if (scenario.local) scenario.local(config, group);
  return config;
}

bool fail(const Rank& rank, Channel& channel, const std::string& text) {
  ADD_FAILURE() << "rank " << rank.config.world_rank << ": " << text;
  static_cast<void>(channel.close());  // the others need not wait for the guard
  return false;
}

// A dispatch that is held, with the memory that its combine writes.
struct Held {
  Ticket ticket;
  std::unique_ptr<AttentionStep> step;
};

Status finish(const Scenario& scenario, Channel& channel, Held& held) {
  return scenario.use_serve ? channel.serve(held.ticket, held.step->out(), held.step->add())
                            : channel.combine(held.ticket, held.step->out(), held.step->add());
}

// Sources (rank, step) that must reach this expert rank.
std::uint64_t sources_due(const Scenario& scenario, const Expected& expected, std::uint32_t rank) {
  std::uint64_t due = 0;
  for (const std::vector<ExpectedStep>& steps : expected.of) {
    for (const ExpectedStep& step : steps) {
      const bool touched =
          std::any_of(step.routes.begin(), step.routes.end(),
                      [&](const reference::Route& route) { return route.rank == rank; });
      if (touched || scenario.channel.presence == Presence::every) ++due;
    }
  }
  return due;
}

ExpertSide expert_side(const Scenario& scenario, const Expected& expected, const Rank& rank,
                       const Channel& channel) {
  return {&scenario, &channel.config(), &expected, rank.expert(),
          identities(scenario.channel.placement, rank.expert())};
}

}  // namespace

ChannelConfig usual_channel(std::uint32_t experts, std::uint32_t top_k, std::uint32_t hidden,
                            std::uint32_t max_tokens) {
  ChannelConfig config;
  config.experts = experts;
  config.top_k = top_k;
  config.hidden = hidden;
  config.max_tokens = max_tokens;
  return config;
}

std::vector<Identity> identities(const Placement& placement, std::uint32_t expert_rank) {
  std::vector<Identity> found(placement.local_experts(expert_rank));
  for (std::uint32_t e = 0; e < placement.experts(); ++e) {
    for (std::uint32_t p = 0; p < placement.parts(e); ++p) {
      for (const Replica& replica : placement.replicas(e, p)) {
        if (replica.rank == expert_rank) found[replica.local_expert] = {e, p};
      }
    }
  }
  return found;
}

Expected expect(const Scenario& scenario) {
  Expected expected;
  const RankSet& set = scenario.ranks;
  const reference::Expert expert =
      scenario.expert ? scenario.expert : scaling_expert(scenario.channel);
  for (std::uint32_t a = 0; a < set.attention; ++a) {
    GroupConfig group;
    group.attention_rank = static_cast<std::int32_t>(a);
    const ChannelConfig config = local_config(scenario, group);
    std::vector<ExpectedStep>& steps = expected.of.emplace_back();
    for (std::uint32_t s = 0; s < scenario.steps; ++s) {
      ExpectedStep step;
      step.inputs = scenario.inputs(a, s);
      const reference::Job job{config, a, s};
      step.routes = reference::route(job, step.inputs);
      step.out = reference::combine(job, step.inputs, expert);
      steps.push_back(std::move(step));
    }
  }
  return expected;
}

bool run_attention(const Scenario& scenario, const Expected& expected, Rank& rank,
                   Channel& channel) {
  std::deque<Held> held;
  for (std::uint32_t s = 0; s < scenario.steps; ++s) {
    const ExpectedStep& step = expected.at(rank.attention(), s);
    rank.at("dispatch", s);
    Held next;
    next.step = std::make_unique<AttentionStep>(scenario, channel.config(), step);
    Result<Ticket> ticket = next.step->dispatch(channel);
    if (!ticket) return fail(rank, channel, "dispatch: " + ticket.status().text());
    if (ticket->operation() != s) return fail(rank, channel, "operation number is not the step");
    next.ticket = std::move(*ticket);
    held.push_back(std::move(next));
    const bool last = s + 1 == scenario.steps;
    if (held.size() < scenario.in_flight && !last) continue;
    const std::size_t keep = scenario.newest_first || last ? 0 : scenario.in_flight - 1;
    while (held.size() > keep) {
      Held one = std::move(scenario.newest_first ? held.back() : held.front());
      scenario.newest_first ? held.pop_back() : held.pop_front();
      rank.at("combine", one.ticket.operation());
      const std::uint64_t operation = one.ticket.operation();
      const Status status = finish(scenario, channel, one);
      if (!status) return fail(rank, channel, "combine: " + status.text());
      const std::string wrong = one.step->check();
      if (!wrong.empty()) {
        return fail(rank, channel, "operation " + std::to_string(operation) + ": " + wrong);
      }
    }
  }
  return true;
}

bool run_expert(const Scenario& scenario, const Expected& expected, Rank& rank, Channel& channel) {
  const ExpertSide side = expert_side(scenario, expected, rank, channel);
  const std::uint64_t due = sources_due(scenario, expected, rank.expert());
  std::vector<std::byte> memory;
  ReceivePolicy policy;
  policy.min_sources = 1;
  if (scenario.form.own_buffer && channel.config().layout != Layout::rows) {
    const std::size_t capacity =
        std::size_t{scenario.ranks.attention} * channel.config().max_tokens +
        channel.config().packed_alignment;
    const std::size_t bytes =
        side.identity.size() * capacity * channel.row_format().stride_bytes + 64;
    memory.resize(bytes + 64);
    void* base = memory.data();
    std::size_t space = memory.size();
    policy.buffer = {static_cast<std::byte*>(std::align(64, bytes, base, space)), bytes};
  }
  for (std::uint64_t got = 0; got < due;) {
    rank.at("receive", got);
    policy.min_sources =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(scenario.min_sources, due - got));
    policy.max_wait = std::chrono::milliseconds{1};
    policy.early = scenario.early && channel.config().layout == Layout::rows;
    Result<Batch> batch = channel.receive({}, policy);
    if (!batch) return fail(rank, channel, "receive: " + batch.status().text());
    got += batch->sources().size();
    if (scenario.check_batches && !policy.early) {
      const std::string wrong = check_batch(side, channel, *batch);
      if (!wrong.empty()) return fail(rank, channel, "batch: " + wrong);
    }
    rank.at("reply", got);
    const Status status = answer(side, *batch, channel);
    if (!status) return fail(rank, channel, "reply: " + status.text());
  }
  return true;
}

namespace {

// One thread with both roles, without serve(): dispatch never waits, so taking turns cannot block.
bool run_both(const Scenario& scenario, const Expected& expected, Rank& rank, Channel& channel) {
  const ExpertSide side = expert_side(scenario, expected, rank, channel);
  for (std::uint32_t s = 0; s < scenario.steps; ++s) {
    AttentionStep step{scenario, channel.config(), expected.at(rank.attention(), s)};
    rank.at("dispatch", s);
    Result<Ticket> ticket = step.dispatch(channel);
    if (!ticket) return fail(rank, channel, "dispatch: " + ticket.status().text());
    rank.at("receive", s);
    Result<Batch> batch = channel.receive();
    if (!batch) return fail(rank, channel, "receive: " + batch.status().text());
    const std::string bad_batch = check_batch(side, channel, *batch);
    if (!bad_batch.empty()) return fail(rank, channel, "batch: " + bad_batch);
    const Status replied = answer(side, *batch, channel);
    if (!replied) return fail(rank, channel, "reply: " + replied.text());
    rank.at("combine", s);
    const Status status = channel.combine(*ticket, step.out(), step.add());
    if (!status) return fail(rank, channel, "combine: " + status.text());
    const std::string wrong = step.check();
    if (!wrong.empty()) return fail(rank, channel, wrong);
  }
  return true;
}

}  // namespace

void run_rank(const Scenario& scenario, const Expected& expected, Rank& rank) {
  const ChannelConfig config = local_config(scenario, rank.config);
  OpenOptions options;
  std::uint64_t served = 0;
  ExpertSide side;
  options.expert_function = [&](Channel& channel, Batch& batch) -> Status {
    ++served;
    const std::string wrong = check_batch(side, channel, batch);
    if (!wrong.empty()) fail(rank, channel, "batch: " + wrong);
    return answer(side, batch, channel);
  };
  rank.at("Group::open");
  Result<Channel> opened = rank.group.open(config, options);
  if (!opened) {
    ADD_FAILURE() << "open at rank " << rank.config.world_rank << ": " << opened.status().text();
    return;
  }
  Channel& channel = *opened;
  if (rank.serves()) side = expert_side(scenario, expected, rank, channel);
  bool good = true;
  if (rank.attends() && rank.serves() && !scenario.use_serve) {
    good = run_both(scenario, expected, rank, channel);
  } else {
    if (rank.attends()) good = run_attention(scenario, expected, rank, channel);
    if (rank.serves() && !rank.attends()) good = run_expert(scenario, expected, rank, channel);
    while (good && rank.attends() && rank.serves() && served < scenario.steps) {
      rank.at("serving the rest", served);
      Result<Batch> batch = channel.receive();
      if (!batch || !options.expert_function(channel, *batch)) {
        good = fail(rank, channel, "serving the rest: " + batch.status().text());
      }
    }
  }
  if (good && scenario.finally) scenario.finally(rank, channel);
  if (!good) return;
  rank.at("drain");
  const Status drained = channel.drain();
  if (!drained) fail(rank, channel, "drain: " + drained.text());
}

void run(const Scenario& given) {
  Scenario scenario = given;
  if (!scenario.channel.placement) {
    scenario.channel.placement = Placement::block(scenario.channel.experts, scenario.ranks.experts);
  }
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) { run_rank(scenario, expected, rank); });
}

void run_everywhere(const Scenario& scenario) {
  for (const char* transport : {"inproc", "shm"}) {
    SCOPED_TRACE(transport);
    Scenario one = scenario;
    one.ranks.transport = transport;
    run(one);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace m2n::testing
