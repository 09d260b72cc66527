// Small steps of an attention and an expert end, for tests that care about threads and not about
// shapes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "m2n/m2n.hpp"

namespace m2n::testing {

inline constexpr std::uint32_t lane_hidden = 32;
inline constexpr std::uint32_t lane_tokens = 4;

// top-1 of one expert per rank; payload f32, so that answers are plain numbers.
ChannelConfig lane_config(std::uint32_t experts, const char* name = "lane");

// Creates one group per rank from as many threads and gives them in rank order; empty if that
// failed.
std::vector<Group> make_groups(std::uint32_t ranks, std::uint32_t workers,
                               const std::function<void(GroupConfig&)>& adjust = {});
// The same for a channel.
std::vector<Channel> open_everywhere(std::vector<Group>& groups, const ChannelConfig& config,
                                     const OpenOptions& options);

// Dispatches lane_tokens tokens of value `value`, token t to expert t % experts.
Result<Ticket> send(Channel& channel, float value);
// Combines and says whether every token came back as 2 * value.
bool take_back(Channel& channel, Ticket& ticket, float value);
// Receives one batch and answers y = 2 x.
Status answer(Channel& channel);
Status double_batch(Channel& channel, Batch& batch);

}  // namespace m2n::testing
