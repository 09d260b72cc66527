#include "tests/mutations/protocol_model.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

namespace m2n::testing {
namespace {

using collectives::Ledger;

constexpr std::uint32_t most_ranks = 2;
constexpr std::uint32_t most_pairs = most_ranks * most_ranks;
constexpr std::uint32_t most_depth = 2;
constexpr std::uint32_t most_rounds = 4;
constexpr std::uint32_t cells = 2;  // of a slot; each holds the round that wrote it, plus 1

struct Slot {
  std::uint8_t word = 0;
  std::uint8_t cell[cells] = {};
};

// The window of one direction of a pair, and the puts on their way to it: bit i of `left` is cell
// i, the bit behind the cells is the word.
struct Window {
  Slot slot[most_depth];
  std::uint8_t left[most_rounds] = {};  // by round
};
constexpr std::uint8_t word_bit = 1u << cells;
constexpr std::uint8_t whole_put = (word_bit << 1) - 1;

enum class Ticket : std::uint8_t { none, open, credited, combined };

struct Attention {
  Ticket ticket[most_rounds] = {};
  std::uint8_t reading = 0;  // round + 1 while a combine reads, else 0
  std::uint8_t cursor = 0;   // cells it has read
  std::uint8_t added = 0;    // bit per expert rank
};

enum class Phase : std::uint8_t { waiting, reading, answering, resetting };

struct Expert {
  std::uint8_t round = 0;
  Phase phase = Phase::waiting;
  std::uint8_t cursor = 0;
};

// Plain bytes, so that they are their own key.
struct Plain {
  Window out[most_pairs];   // dispatch, by attention x experts + expert
  Window back[most_pairs];  // reply
  Attention attention[most_ranks];
  Expert expert[most_ranks];
};

struct State {
  Plain plain{};
  std::vector<Ledger> ledgers;
  // What a ledger holds follows from the tickets, but for its broken variant's count.
  std::string key() const {
    std::string key(sizeof(Plain), '\0');
    std::memcpy(key.data(), &plain, sizeof(Plain));
    for (const Ledger& ledger : ledgers) {
      key.push_back(static_cast<char>(ledger.issued()));
      key.push_back(static_cast<char>(ledger.consumed()));
    }
    return key;
  }
};

class Explorer {
 public:
  explicit Explorer(const Model& model) : model_{model} {}

  Findings run() {
    State first;
    first.ledgers.assign(model_.attention, Ledger{model_.depth});
    keep(first);
    while (!open_.empty() && !enough()) {
      now_ = std::move(open_.back());
      open_.pop_back();
      moved_ = false;
      for (std::uint32_t a = 0; a < model_.attention; ++a) attention_steps(a);
      for (std::uint32_t e = 0; e < model_.experts; ++e) expert_steps(e);
      for (std::uint32_t pair = 0; pair < model_.attention * model_.experts; ++pair) {
        wire_steps(pair, &Plain::out);
        wire_steps(pair, &Plain::back);
      }
      if (moved_) continue;
      if (finished()) {
        ++findings_.ends;
      } else {
        findings_.deadlock = true;
      }
    }
    findings_.states = seen_.size();
    return findings_;
  }

 private:
  std::uint32_t pair(std::uint32_t a, std::uint32_t e) const { return a * model_.experts + e; }
  bool is(Mutation mutation) const { return model_.mutation == mutation; }

  // A broken variant reaches far more states than the sound one; one finding of its kind will do.
  bool enough() const {
    return is(Mutation::words_reset) ? findings_.deadlock : !findings_.clean();
  }

  void keep(const State& state) {
    if (seen_.insert(state.key()).second) open_.push_back(state);
  }
  // One step leads from now_ to `next`.
  void move(const State& next) {
    moved_ = true;
    keep(next);
  }
  void violation(const std::string& text) {
    if (findings_.violations.size() < 20) findings_.violations.insert(text);
  }

  std::uint8_t& word(Window& window, std::uint32_t round) const {
    return window.slot[is(Mutation::word_per_pair) ? 0 : round % model_.depth].word;
  }
  bool complete(Window window, std::uint32_t round) const {
    const std::uint32_t value = word(window, round);
    switch (model_.mutation) {
      case Mutation::word_per_pair:
        return value >= round + 1;
      case Mutation::words_reset:
      case Mutation::words_never_compared:
        return value >= 1;
      default:
        return value >= round / model_.depth + 1;
    }
  }
  void read(const Window& window, std::uint32_t round, std::uint32_t cell, const char* who) {
    const std::uint32_t found = window.slot[round % model_.depth].cell[cell];
    if (found == round + 1) return;
    violation(std::string{who} + " of round " + std::to_string(round) + " reads " +
              (found == 0 ? "nothing" : "round " + std::to_string(found - 1)));
  }

  // --- attention ranks ---
  bool replied(const State& state, std::uint32_t a, std::uint32_t round) const {
    for (std::uint32_t e = 0; e < model_.experts; ++e) {
      if (!complete(state.plain.back[pair(a, e)], round)) return false;
    }
    return true;
  }

  bool has_credit(std::uint32_t a) const {
    const Ledger& ledger = now_.ledgers[a];
    if (!is(Mutation::credits_counted)) return ledger.has_credit();
    const auto& tickets = now_.plain.attention[a].ticket;
    const auto open = std::count(std::begin(tickets), std::end(tickets), Ticket::open);
    return open < static_cast<std::ptrdiff_t>(model_.depth);
  }

  void attention_steps(std::uint32_t a) {
    const Attention& rank = now_.plain.attention[a];
    if (rank.reading != 0) {
      is(Mutation::sum_in_arrival_order) ? add_what_came(a) : read_next(a);
      return;
    }
    if (now_.ledgers[a].issued() < model_.rounds && has_credit(a)) dispatch(a);
    for (std::uint32_t round = 0; round < model_.rounds; ++round) {
      const Ticket ticket = rank.ticket[round];
      if (ticket != Ticket::open && ticket != Ticket::credited) continue;
      const bool here = replied(now_, a, round);
      if (here && ticket == Ticket::open && is(Mutation::credit_at_arrival)) {
        State next = now_;
        next.ledgers[a].finish(round);
        next.plain.attention[a].ticket[round] = Ticket::credited;
        move(next);
      }
      if (!here && !is(Mutation::sum_in_arrival_order)) continue;
      State next = now_;
      next.plain.attention[a].reading = static_cast<std::uint8_t>(round + 1);
      move(next);
    }
  }

  void dispatch(std::uint32_t a) {
    State next = now_;
    const std::uint64_t round = next.ledgers[a].issue();
    next.plain.attention[a].ticket[round] = Ticket::open;
    for (std::uint32_t e = 0; e < model_.experts; ++e) {
      next.plain.out[pair(a, e)].left[round] = whole_put;
    }
    move(next);
  }

  void read_next(std::uint32_t a) {
    State next = now_;
    Attention& rank = next.plain.attention[a];
    const std::uint32_t round = rank.reading - 1u;
    read(next.plain.back[pair(a, rank.cursor / cells)], round, rank.cursor % cells, "combine");
    if (++rank.cursor == model_.experts * cells) finish_combine(next, a);
    move(next);
  }

  // The sum takes in whichever reply is there; it should always be the lowest rank's that is
  // missing.
  void add_what_came(std::uint32_t a) {
    for (std::uint32_t e = 0; e < model_.experts; ++e) {
      const Attention& rank = now_.plain.attention[a];
      if ((rank.added >> e & 1) != 0) continue;
      if (!complete(now_.plain.back[pair(a, e)], rank.reading - 1u)) continue;
      State next = now_;
      if ((rank.added + 1u) >> e != 1) violation("order: rank " + std::to_string(e) + " is early");
      next.plain.attention[a].added = static_cast<std::uint8_t>(rank.added | 1u << e);
      if (next.plain.attention[a].added == (1u << model_.experts) - 1) finish_combine(next, a);
      move(next);
    }
  }

  void finish_combine(State& state, std::uint32_t a) {
    Attention& rank = state.plain.attention[a];
    const std::uint32_t round = rank.reading - 1u;
    if (rank.ticket[round] == Ticket::open) state.ledgers[a].finish(round);
    rank.ticket[round] = Ticket::combined;
    rank.reading = rank.cursor = rank.added = 0;
  }

  // --- expert ranks ---
  void expert_steps(std::uint32_t e) {
    if (now_.plain.expert[e].round == model_.rounds) return;
    State next = now_;
    Expert& rank = next.plain.expert[e];
    switch (rank.phase) {
      case Phase::waiting:
        for (std::uint32_t a = 0; a < model_.attention; ++a) {
          if (!complete(now_.plain.out[pair(a, e)], rank.round)) return;
        }
        rank.phase = Phase::reading;
        break;
      case Phase::reading:
        read(next.plain.out[pair(rank.cursor / cells, e)], rank.round, rank.cursor % cells,
             "receive");
        if (++rank.cursor == model_.attention * cells) go_on(rank, Phase::answering);
        break;
      case Phase::answering:
        next.plain.back[pair(rank.cursor, e)].left[rank.round] = whole_put;
        if (++rank.cursor == model_.attention) {
          go_on(rank, is(Mutation::words_reset) ? Phase::resetting : Phase::waiting);
        }
        break;
      case Phase::resetting:
        word(next.plain.out[pair(rank.cursor, e)], rank.round) = 0;
        if (++rank.cursor == model_.attention) go_on(rank, Phase::waiting);
        break;
    }
    move(next);
  }

  static void go_on(Expert& rank, Phase phase) {
    rank.cursor = 0;
    rank.phase = phase;
    if (phase == Phase::waiting) ++rank.round;
  }

  // --- the wire ---
  void wire_steps(std::uint32_t which, Window (Plain::*direction)[most_pairs]) {
    for (std::uint32_t round = 0; round < model_.rounds; ++round) {
      const std::uint8_t left = (now_.plain.*direction)[which].left[round];
      for (std::uint8_t bit = 1; bit <= word_bit; bit = static_cast<std::uint8_t>(bit << 1)) {
        if ((left & bit) == 0) continue;
        if (bit == word_bit && left != word_bit && !is(Mutation::no_fence)) continue;
        State next = now_;
        Window& window = (next.plain.*direction)[which];
        window.left[round] = static_cast<std::uint8_t>(left & ~bit);
        if (bit == word_bit) {
          ++word(window, round);
        } else {
          window.slot[round % model_.depth].cell[bit >> 1] = static_cast<std::uint8_t>(round + 1);
        }
        move(next);
      }
    }
  }

  bool finished() const {
    for (std::uint32_t a = 0; a < model_.attention; ++a) {
      const auto& tickets = now_.plain.attention[a].ticket;
      if (std::count(std::begin(tickets), std::end(tickets), Ticket::combined) !=
          static_cast<std::ptrdiff_t>(model_.rounds))
        return false;
    }
    for (std::uint32_t e = 0; e < model_.experts; ++e) {
      if (now_.plain.expert[e].round != model_.rounds) return false;
    }
    return true;
  }

  Model model_;
  State now_;
  bool moved_ = false;
  std::vector<State> open_;
  std::unordered_set<std::string> seen_;
  Findings findings_;
};

bool any_with(const std::set<std::string>& texts, const char* word) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(word) != std::string::npos; });
}

}  // namespace

bool Findings::wrong_round() const {
  return any_with(violations, "reads");
}
bool Findings::wrong_order() const {
  return any_with(violations, "order");
}

Findings explore(const Model& model) {
  return Explorer{model}.run();
}

}  // namespace m2n::testing
