// The k-th call of a transport fails, for k = 0, 1, 2, ... until a run passes without: every rank
// ends within its deadline, with a result that is right or a status that says what happened.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/decorated/hooked.hpp"

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How a rank ended. Ranks write their own element.
struct Outcome {
  Status status;
  std::string where = "open";
  milliseconds took{0};
};

Status attend(const Scenario& scenario, const Expected& expected, Rank& rank, Channel& channel,
              std::string& where) {
  for (std::uint32_t s = 0; s < scenario.steps; ++s) {
    AttentionStep step{scenario, channel.config(), expected.at(rank.attention(), s)};
    rank.at("dispatch", s);
    where = "dispatch " + std::to_string(s);
    Result<Ticket> ticket = step.dispatch(channel);
    if (!ticket) return ticket.status();
    rank.at("combine", s);
    where = "combine " + std::to_string(s);
    if (Status status = channel.combine(*ticket, step.out(), step.add()); !status) return status;
    EXPECT_EQ(step.check(), "") << "ok, but the result is wrong";
  }
  return {};
}

Status serve(const Scenario& scenario, const Expected& expected, Rank& rank, Channel& channel,
             std::string& where) {
  const ExpertSide side{&scenario, &channel.config(), &expected, rank.expert(),
                        identities(scenario.channel.placement, rank.expert())};
  for (std::uint32_t s = 0; s < scenario.steps; ++s) {
    rank.at("receive", s);
    where = "receive " + std::to_string(s);
    Result<Batch> batch = channel.receive();
    if (!batch) return batch.status();
    EXPECT_EQ(check_batch(side, channel, *batch), "");
    rank.at("reply", s);
    where = "reply " + std::to_string(s);
    if (Status status = answer(side, *batch, channel); !status) return status;
  }
  return {};
}

// One rank from create to close; a rank that fails closes its channel, as a program would.
Status one_rank(const Scenario& scenario, const Expected& expected, Rank& rank,
                std::string& where) {
  where = "create";
  rank.at("create");
  Result<Group> group = Group::create(rank.config, rank.store);
  if (!group) return group.status();
  where = "open";
  rank.at("open");
  Result<Channel> channel = group->open(scenario.channel);
  if (!channel) return channel.status();
  Status status = rank.attends() ? attend(scenario, expected, rank, *channel, where)
                                 : serve(scenario, expected, rank, *channel, where);
  if (!status) return status;
  where = "drain";
  rank.at("drain");
  return channel->drain();
}

std::vector<Outcome> run_once(Scenario scenario, const Expected& expected, milliseconds timeout) {
  scenario.ranks.bare = true;
  scenario.ranks.adjust = [timeout](GroupConfig& config) {
    config.start_timeout = config.step_timeout = timeout;
    config.log = [](LogLevel, std::int32_t, std::string_view) {};
  };
  std::vector<Outcome> outcomes(scenario.ranks.attention + scenario.ranks.experts);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    const Clock::time_point start = Clock::now();
    Outcome& outcome = outcomes[rank.config.world_rank];
    outcome.status = one_rank(scenario, expected, rank, outcome.where);
    outcome.took = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  });
  return outcomes;
}

std::string describe(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (const Outcome& outcome : outcomes) {
    text.append("\n  ").append(outcome.where).append(" ").append(name(outcome.status.code()));
    text.append(" after ").append(std::to_string(outcome.took.count())).append(" ms: ");
    text.append(outcome.status.text());
  }
  return text;
}

// One failed call: only its rank may say `system`, and what others say follows from it.
void expect_ends(const std::vector<Outcome>& outcomes, milliseconds timeout, bool setup) {
  std::size_t system = 0;
  for (const Outcome& outcome : outcomes) {
    const Code code = outcome.status.code();
    system += code == Code::system ? 1 : 0;
    const bool expected = code == Code::ok || code == Code::unavailable ||
                          code == Code::peer_failed || code == Code::timeout ||
                          code == Code::closed || code == Code::system ||
                          (setup && code == Code::invalid);
    EXPECT_TRUE(expected) << name(code);
    if (code != Code::ok) {
      EXPECT_FALSE(outcome.status.text().empty()) << name(code);
    }
    // create, open, one step and a close of at most a second; the rest is for a busy machine.
    EXPECT_LT(outcome.took, 3 * timeout + milliseconds{6000});
  }
  EXPECT_LE(system, 1u);
}

// Sets the fault for k = 0, 1, ...; returns the number of runs that had one.
std::uint64_t fail_each(const Scenario& scenario, milliseconds timeout, bool setup,
                        const std::function<void(Faults&, std::uint64_t)>& set) {
  const Expected expected = expect(scenario);
  for (std::uint64_t k = 0; k < 500; ++k) {
    const auto faults = std::make_shared<Faults>();
    set(*faults, k);
    const Hooked hooked{faulty(faults)};
    const std::vector<Outcome> outcomes = run_once(scenario, expected, timeout);
    SCOPED_TRACE("k = " + std::to_string(k) + describe(outcomes));
    if (faults->injected.load() == 0) return k;
    expect_ends(outcomes, timeout, setup);
    if (::testing::Test::HasFailure()) return k;
  }
  ADD_FAILURE() << "no run passes without a fault";
  return 0;
}

void expect_all_ok(const Scenario& scenario) {
  const std::vector<Outcome> outcomes = run_once(scenario, expect(scenario), milliseconds{20'000});
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(bool(outcome.status)) << describe(outcomes);
}

TEST(FailTheKth, PutThatIsRefused) {
  const Scenario scenario = small_scenario(1, 2, 2);
  const std::uint64_t runs =
      fail_each(scenario, milliseconds{200}, false,
                [](Faults& faults, std::uint64_t k) { faults.put_fail_at = k; });
  EXPECT_GE(runs, 8u) << "2 rounds x 2 pairs x 2 directions";
  expect_all_ok(scenario);
}

TEST(FailTheKth, PutThatIsLostUnderWay) {
  const std::uint64_t runs =
      fail_each(small_scenario(2, 1, 2), milliseconds{200}, false,
                [](Faults& faults, std::uint64_t k) { faults.put_break_at = k; });
  EXPECT_GE(runs, 8u);
}

TEST(FailTheKth, PutFromWhichOnAPeerIsDead) {
  const std::uint64_t runs = fail_each(small_scenario(1, 1, 2), milliseconds{200}, false,
                                       [](Faults& faults, std::uint64_t k) {
                                         faults.kill_at = k;
                                         faults.killed_world_rank = 1;
                                       });
  EXPECT_GE(runs, 4u);
}

TEST(FailTheKth, SetUpCall) {
  Scenario scenario = small_scenario(1, 2, 1);
  const std::uint64_t runs =
      fail_each(scenario, milliseconds{3000}, true,
                [](Faults& faults, std::uint64_t k) { faults.setup_fail_at = k; });
  EXPECT_GE(runs, 20u) << "windows, words and connections of 4 ends";
}

// Results are exact when the k-th put is answered `again`, or is late.
void expect_exact_at_each(const std::function<void(Faults&, std::uint64_t)>& set) {
  Scenario scenario = small_scenario(2, 2, 3);
  scenario.in_flight = 2;
  for (std::uint64_t k = 0; k < 500; ++k) {
    SCOPED_TRACE("k = " + std::to_string(k));
    const auto faults = std::make_shared<Faults>();
    set(*faults, k);
    const Hooked hooked{faulty(faults)};
    run(scenario);
    if (::testing::Test::HasFailure()) return;
    if (faults->injected.load() == 0) {
      EXPECT_GE(k, 24u) << "3 rounds x 4 pairs x 2 directions";
      return;
    }
  }
  ADD_FAILURE() << "no run passes without a fault";
}

TEST(TheKthPut, AnswersAgain) {
  expect_exact_at_each([](Faults& faults, std::uint64_t k) { faults.put_again_at = k; });
}

TEST(TheKthPut, IsLate) {
  expect_exact_at_each([](Faults& faults, std::uint64_t k) {
    faults.put_delay_at = k;
    faults.delay_calls = 20;
  });
}

}  // namespace
}  // namespace m2n::testing
