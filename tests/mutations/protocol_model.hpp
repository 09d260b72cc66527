// The protocol of rounds as a machine of small steps, and a search over all orders in which they
// can happen. Broken variants of the protocol are named by Mutation; the search has to find what
// they break. Pure; one thread.
//
// A round: an attention rank with a credit hands one put per expert rank to the wire; the wire
// writes the cells of the slot and then raises its word, puts in any order among each other; an
// expert rank that sees the words of all sources reads the slots and answers, in the same way; an
// attention rank that sees the words of all answers reads them, and only then has its credit back.
// Credits are those of the real Ledger.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "collectives/ledger.hpp"

namespace m2n::testing {

enum class Mutation : std::uint8_t {
  none,
  word_per_pair,         // one word counts the puts of all slots of a pair
  credit_at_arrival,     // the reply's word returns the credit, before the reply is read
  no_fence,              // the word may be seen before the cells
  words_reset,           // an expert rank sets a word back to 0 after it has answered
  words_never_compared,  // a word says "there is something", not which round
  sum_in_arrival_order,  // combine adds replies as they come
  credits_counted,       // combine 1 before combine 0 frees a slot
};

struct Model {
  std::uint32_t attention = 1;
  std::uint32_t experts = 1;
  std::uint32_t depth = 1;
  std::uint32_t rounds = 3;
  Mutation mutation = Mutation::none;
};

struct Findings {
  std::size_t states = 0;
  std::size_t ends = 0;              // states in which every rank is done
  std::set<std::string> violations;  // a few of them
  bool deadlock = false;
  bool wrong_round() const;  // a rank has read what another round wrote
  bool wrong_order() const;
  bool clean() const { return violations.empty() && !deadlock; }
};

// Walks every state that the model can reach, or until it has found what a mutation breaks.
Findings explore(const Model& model);

}  // namespace m2n::testing
