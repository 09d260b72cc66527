// Deadlines and what is said when they pass: I-22, I-23.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Scenario small(std::uint32_t m, std::uint32_t n, std::uint32_t steps) {
  Scenario scenario;
  scenario.ranks.attention = m;
  scenario.ranks.experts = n;
  scenario.channel = usual_channel(2 * n, 2, 64, 4);
  scenario.channel.placement = Placement::block(2 * n, n);
  scenario.steps = steps;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, 3, step);
  };
  return scenario;
}

void set_deadlines(Scenario& scenario, milliseconds start, milliseconds step) {
  scenario.ranks.adjust = [=](GroupConfig& config) {
    config.start_timeout = start;
    config.step_timeout = step;
  };
}

void expect_names_the_late_one(const Status& status, const char* operation) {
  EXPECT_EQ(status.code(), Code::timeout);
  for (const char* part : {"rank 1", operation, "\"main\"", "TIMEOUT_MS"}) {
    EXPECT_NE(status.text().find(part), std::string::npos)
        << "no " << part << ": " << status.text();
  }
}

// The body of a run in which attention rank 1 comes late to operation `late`. Expert ranks retry
// after a deadline until the operation has come; `seen` gets the first failure and its time.
struct Late {
  std::uint32_t operation = 0;
  milliseconds delay{0};
  Timeout timeout{};
};
struct Seen {
  std::mutex mutex;
  std::vector<Status> failures;
  std::vector<milliseconds> after;
};

void late_body(const Scenario& scenario, const Expected& expected, std::pair<Late, Seen*> what,
               Rank& rank) {
  const Late& late = what.first;
  Result<Channel> channel = rank.group.open(scenario.channel);
  ASSERT_TRUE(bool(channel)) << channel.status().text();
  const ExpertSide side{&scenario, &channel->config(), &expected, rank.serves() ? rank.expert() : 0,
                        identities(scenario.channel.placement, rank.serves() ? rank.expert() : 0)};
  for (std::uint32_t s = 0; s < scenario.steps; ++s) {
    if (rank.attends()) {
      if (rank.attention() == 1 && s == late.operation) std::this_thread::sleep_for(late.delay);
      AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), s)};
      Result<Ticket> ticket = step.dispatch(*channel);
      ASSERT_TRUE(bool(ticket)) << ticket.status().text();
      const Status status = channel->combine(*ticket, step.out(), {}, Timeout::never());
      EXPECT_TRUE(bool(status)) << status.text();
      EXPECT_EQ(step.check(), "");
      continue;
    }
    const Clock::time_point start = Clock::now();
    Result<Batch> batch = channel->receive(late.timeout);
    while (!batch && batch.code() == Code::timeout) {
      {
        const std::lock_guard lock{what.second->mutex};
        what.second->failures.push_back(batch.status());
        what.second->after.push_back(
            std::chrono::duration_cast<milliseconds>(Clock::now() - start));
      }
      batch = channel->receive(Timeout::never());
    }
    ASSERT_TRUE(bool(batch)) << batch.status().text();
    EXPECT_EQ(check_batch(side, *channel, *batch), "");
    EXPECT_TRUE(bool(answer(side, *batch, *channel)));
  }
  EXPECT_TRUE(bool(channel->drain(Timeout::never())));
}

void run_late(const Scenario& scenario, const Late& late, Seen& seen) {
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    late_body(scenario, expected, {late, &seen}, rank);
  });
}

TEST(I22, TheFirstOperationHasTheStartDeadline) {
  Scenario scenario = small(2, 2, 3);
  set_deadlines(scenario, milliseconds{10'000}, milliseconds{200});
  Seen seen;
  run_late(scenario, {0, milliseconds{700}, {}}, seen);
  EXPECT_TRUE(seen.failures.empty()) << seen.failures.front().text();
}

TEST(I22, ThenTheStepDeadlineNamesTheLateRank) {
  Scenario scenario = small(2, 2, 3);
  set_deadlines(scenario, milliseconds{10'000}, milliseconds{200});
  Seen seen;
  run_late(scenario, {1, milliseconds{700}, {}}, seen);
  ASSERT_EQ(seen.failures.size(), 2u);  // both expert ranks, once
  for (const Status& status : seen.failures) expect_names_the_late_one(status, "operation 1");
  for (const milliseconds after : seen.after) {
    EXPECT_GE(after.count(), 200);
    EXPECT_LT(after.count(), 650);
  }
}

TEST(I22, ACallsOwnDeadlineCounts) {
  Scenario scenario = small(2, 2, 2);
  Seen seen;
  run_late(scenario, {0, milliseconds{500}, Timeout{milliseconds{100}}}, seen);
  ASSERT_EQ(seen.failures.size(), 2u);
  for (const Status& status : seen.failures) expect_names_the_late_one(status, "operation 0");
}

TEST(I22, NeverMeansNever) {
  Scenario scenario = small(2, 2, 2);
  set_deadlines(scenario, milliseconds{2'000}, milliseconds{50});
  Seen seen;
  run_late(scenario, {1, milliseconds{400}, Timeout::never()}, seen);
  EXPECT_TRUE(seen.failures.empty()) << seen.failures.front().text();
}

TEST(I22, DeadlinesFromTheEnvironment) {
  for (const char* bad : {"5x", "-3", "", " 7", "1e3", "99999999999999999999"}) {
    setenv("M2N_STEP_TIMEOUT_MS", bad, 1);
    const Status status = Group::create(GroupConfig::both(1, 0), make_inproc_store()).status();
    EXPECT_EQ(status.code(), Code::invalid) << bad;
    EXPECT_NE(status.text().find("M2N_STEP_TIMEOUT_MS"), std::string::npos) << status.text();
  }
  setenv("M2N_STEP_TIMEOUT_MS", "150", 1);
  Scenario scenario = small(2, 2, 3);
  set_deadlines(scenario, milliseconds{10'000}, milliseconds{0});
  Seen seen;
  run_late(scenario, {1, milliseconds{500}, {}}, seen);
  EXPECT_EQ(seen.failures.size(), 2u);
  setenv("M2N_STEP_TIMEOUT_MS", "0", 1);  // never
  Seen none;
  run_late(scenario, {1, milliseconds{300}, {}}, none);
  EXPECT_TRUE(none.failures.empty());
  unsetenv("M2N_STEP_TIMEOUT_MS");
}

// An expert rank that never answers: ten calls in a row run into their deadline.
TEST(I23, ASilentPeerIsToldInFewLines) {
  Scenario scenario = small(4, 4, 1);
  std::vector<std::atomic<int>> lines(8);
  scenario.ranks.adjust = [&](GroupConfig& config) {
    config.log = [&](LogLevel, std::int32_t rank, std::string_view) {
      if (rank >= 0) ++lines[static_cast<std::size_t>(rank)];
    };
  };
  const Expected expected = expect(scenario);
  std::atomic<int> finished{0};
  ::testing::internal::CaptureStderr();
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.serves() && rank.expert() == 2) {
      while (finished.load() < 4) std::this_thread::yield();  // silent until all have given up
      EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
    } else if (rank.serves()) {
      EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
    } else {
      AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), 0)};
      Result<Ticket> ticket = step.dispatch(*channel);
      ASSERT_TRUE(bool(ticket)) << ticket.status().text();
      for (int call = 0; call < 10; ++call) {
        const Status status = channel->combine(*ticket, step.out(), {}, Timeout{milliseconds{20}});
        EXPECT_EQ(status.code(), Code::timeout);
        EXPECT_NE(status.text().find("rank 6"), std::string::npos) << status.text();
      }
      ++finished;
      EXPECT_TRUE(bool(channel->combine(*ticket, step.out())));
      EXPECT_EQ(step.check(), "");
    }
    EXPECT_TRUE(bool(channel->drain()));
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  for (const std::atomic<int>& count : lines) EXPECT_LE(count.load(), 10);
}

TEST(I23, NothingIsSaidOnSuccess) {
  for (const char* transport : {"inproc", "shm"}) {
    Scenario scenario = small(2, 2, 1000);
    scenario.ranks.transport = transport;
    ::testing::internal::CaptureStderr();
    run(scenario);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }
}

}  // namespace
}  // namespace m2n::testing
