// The protocol of rounds holds in every order of steps, and each broken variant of it is found out:
// a variant that the search does not catch fails the test, because then the search proves nothing.
#include <gtest/gtest.h>

#include <string>

#include "tests/mutations/protocol_model.hpp"

namespace m2n::testing {
namespace {

std::string describe(const Model& model, const Findings& findings) {
  std::string text = std::to_string(model.attention) + "x" + std::to_string(model.experts) +
                     ", depth " + std::to_string(model.depth) + ": " +
                     std::to_string(findings.states) + " states";
  for (const std::string& violation : findings.violations) text += "\n  " + violation;
  return text + (findings.deadlock ? "\n  deadlock" : "");
}

TEST(Protocol, HoldsInEveryOrderOfSteps) {
  for (const auto& [attention, experts] : {std::pair{1u, 1u}, {2u, 1u}, {1u, 2u}}) {
    for (const std::uint32_t depth : {1u, 2u}) {
      const Model model{attention, experts, depth, 3, Mutation::none};
      const Findings findings = explore(model);
      EXPECT_TRUE(findings.clean()) << describe(model, findings);
      EXPECT_GE(findings.ends, 1u);
      EXPECT_GT(findings.states, 20u);
      RecordProperty(
          "states_" + std::to_string(attention) + std::to_string(experts) + std::to_string(depth),
          static_cast<int>(findings.states));
    }
  }
}

TEST(Mutations, OneWordPerPairTakesOneRoundForAnother) {
  for (const std::uint32_t attention : {1u, 2u}) {
    const Model model{attention, 1, 2, 3, Mutation::word_per_pair};
    const Findings findings = explore(model);
    EXPECT_TRUE(findings.wrong_round()) << describe(model, findings);
  }
  // With one operation in flight there is one put at a time, and nothing to confuse.
  EXPECT_TRUE(explore({1, 1, 1, 3, Mutation::word_per_pair}).clean());
}

TEST(Mutations, ACreditAtTheReplysArrivalLetsTheReplyBeOverwritten) {
  for (const std::uint32_t attention : {1u, 2u}) {
    for (const std::uint32_t depth : {1u, 2u}) {
      const Model model{attention, 1, depth, 3, Mutation::credit_at_arrival};
      const Findings findings = explore(model);
      EXPECT_TRUE(findings.wrong_round()) << describe(model, findings);
    }
  }
}

TEST(Mutations, WithoutAFenceTheWordComesBeforeTheRows) {
  for (const std::uint32_t attention : {1u, 2u}) {
    for (const std::uint32_t depth : {1u, 2u}) {
      const Model model{attention, 1, depth, 3, Mutation::no_fence};
      const Findings findings = explore(model);
      EXPECT_TRUE(findings.wrong_round()) << describe(model, findings);
    }
  }
}

TEST(Mutations, AWordThatIsSetBackLosesARound) {
  for (const std::uint32_t attention : {1u, 2u}) {
    for (const std::uint32_t depth : {1u, 2u}) {
      const Model model{attention, 1, depth, 3, Mutation::words_reset};
      const Findings findings = explore(model);
      EXPECT_TRUE(findings.deadlock) << describe(model, findings);
    }
  }
}

TEST(Mutations, AWordWithoutItsGenerationIsBelievedTwice) {
  for (const std::uint32_t depth : {1u, 2u}) {
    const Model model{1, 1, depth, 3, Mutation::words_never_compared};
    const Findings findings = explore(model);
    EXPECT_TRUE(findings.wrong_round()) << describe(model, findings);
  }
}

TEST(Mutations, ACombineInArrivalOrderHasNoFixedSum) {
  for (const std::uint32_t depth : {1u, 2u}) {
    const Model model{1, 2, depth, 3, Mutation::sum_in_arrival_order};
    const Findings findings = explore(model);
    EXPECT_TRUE(findings.wrong_order()) << describe(model, findings);
  }
}

TEST(Mutations, CreditsThatAreOnlyCountedLetTwoRoundsShareASlot) {
  const Model model{1, 1, 2, 3, Mutation::credits_counted};
  const Findings findings = explore(model);
  EXPECT_TRUE(findings.wrong_round()) << describe(model, findings);
  EXPECT_TRUE(explore({1, 1, 1, 3, Mutation::credits_counted}).clean());
}

}  // namespace
}  // namespace m2n::testing
