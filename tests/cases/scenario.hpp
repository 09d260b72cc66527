// One description of a run (who, what, how the callers' arrays lie), executed by any number of
// ranks and compared bit by bit with the reference on both sides. Built by the test's main thread;
// the parts below run on the ranks' threads or processes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "m2n/m2n.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/reference.hpp"

namespace m2n::testing {

// How the caller's arrays lie in memory.
struct Form {
  bool ids64 = false;
  std::size_t id_pad = 0;      // elements between rows
  std::size_t weight_pad = 0;  // elements between rows
  bool bf16_weights = false;   // the inputs' weights must be exact in bf16
  bool null_weights = false;   // the inputs' weights must be 1
  std::size_t x_pad_bytes = 0;
  std::size_t x_shift_bytes = 0;  // off alignment
  std::size_t out_pad_bytes = 0;
  std::size_t add_pad_bytes = 0;
  std::size_t y_pad_bytes = 0;  // rows layout: between the expert's outputs
  bool y_index = false;         // rows layout: outputs lie in reverse order, told by an index
  bool own_buffer = false;      // grouped, packed: the caller's memory for the rows
  bool arena = false;
};

struct Scenario {
  RankSet ranks;
  ChannelConfig channel;
  // Fields that differ between ranks: layout, capacity, shard.
  std::function<void(ChannelConfig&, const GroupConfig&)> local{};
  Form form{};
  std::uint32_t steps = 1;
  std::uint32_t in_flight = 1;  // tickets held, at most depth
  bool newest_first = false;    // fill up, then combine from the newest to the oldest
  bool use_serve = false;       // both roles: serve() instead of combine()
  std::uint32_t min_sources = 1;
  bool early = false;  // rows layout: batches are read and answered while rows are on their way
  std::function<reference::Inputs(std::uint32_t a, std::uint32_t step)> inputs;
  reference::Expert expert{};  // default: scaling_expert
  bool check_batches = true;
  // Runs on every rank after the last step, before its channel goes.
  std::function<void(Rank&, Channel&)> finally{};
};

// What the reference says about one step of one attention rank.
struct ExpectedStep {
  reference::Inputs inputs;
  std::vector<reference::Route> routes;
  std::vector<std::byte> out;
};

struct Expected {
  std::vector<std::vector<ExpectedStep>> of;  // [attention rank][step]
  const ExpectedStep& at(std::uint32_t a, std::uint64_t step) const {
    return of[a][static_cast<std::size_t>(step)];
  }
};

// Which expert and part a physical expert is.
struct Identity {
  std::uint32_t expert = 0;
  std::uint32_t part = 0;
};
std::vector<Identity> identities(const Placement& placement, std::uint32_t expert_rank);

// --- one attention rank's step, in the caller's memory
// ----------------------------------------------
class AttentionStep {
 public:
  AttentionStep(const Scenario& scenario, const ChannelConfig& config,
                const ExpectedStep& expected);
  Result<Ticket> dispatch(Channel& channel);
  MutableRows out();
  ConstRows add() const;
  // Empty, or what is wrong with the result.
  std::string check() const;

 private:
  void lay_out_routing();
  const Scenario* scenario_;
  const ChannelConfig* config_;
  const ExpectedStep* expected_;
  std::vector<std::byte> x_, ids_, weights_, out_, add_;
  std::size_t x_stride_ = 0, out_stride_ = 0, add_stride_ = 0;
};

// --- one expert rank's batch
// ------------------------------------------------------------------------
struct ExpertSide {
  const Scenario* scenario = nullptr;
  const ChannelConfig* config = nullptr;
  const Expected* expected = nullptr;
  std::uint32_t rank = 0;
  std::vector<Identity> identity{};
};
std::string check_batch(const ExpertSide& side, const Channel& channel, const Batch& batch);
// Computes every pair from the batch's own rows and replies.
Status answer(const ExpertSide& side, Batch& batch, Channel& channel);

// --- the whole run
// ----------------------------------------------------------------------------------
Expected expect(const Scenario& scenario);
void run(const Scenario& scenario);
// As threads over every transport that can do it.
void run_everywhere(const Scenario& scenario);
// The body of one rank, for tests that mix it with other things.
void run_rank(const Scenario& scenario, const Expected& expected, Rank& rank);
// Loops of one end, until all steps are through. False after a failure.
bool run_attention(const Scenario& scenario, const Expected& expected, Rank& rank,
                   Channel& channel);
bool run_expert(const Scenario& scenario, const Expected& expected, Rank& rank, Channel& channel);

// A channel of the cases' usual kind; block placement.
ChannelConfig usual_channel(std::uint32_t experts, std::uint32_t top_k, std::uint32_t hidden,
                            std::uint32_t max_tokens);

}  // namespace m2n::testing
