// What the channels of one rank share: configuration, workers, who is where. Built by
// Group::create; after that only `channels` changes, at open and close.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "collectives/bootstrap.hpp"
#include "collectives/fork_watch.hpp"
#include "collectives/wait.hpp"
#include "collectives/worker.hpp"
#include "m2n/channel.hpp"
#include "m2n/config.hpp"
#include "m2n/store.hpp"
#include "transport/log.hpp"

namespace m2n::collectives {

inline constexpr std::size_t longest_name = 128;  // of a group or a channel

struct GroupCore {
  const std::uint64_t owner = watch_forks();  // a forked copy must say nothing to the peers
  GroupConfig config;
  std::shared_ptr<Store> store;
  std::string place;               // in the store: of the meeting that made this group
  std::string job;                 // nonce, equal on all ranks
  std::uint32_t wire_version = 0;  // the greatest that all ranks speak
  std::string transport_name;
  transport::Log log{{}, -1};
  std::chrono::nanoseconds start_timeout{0};  // 0 = never
  std::chrono::nanoseconds step_timeout{0};
  WaitPolicy wait;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::vector<Bytes>> addresses;   // [world rank][its worker]
  std::vector<std::uint32_t> attention_world;  // [attention rank] -> world rank
  std::vector<std::uint32_t> expert_world;     // [expert rank] -> world rank
  std::vector<bool> expert_is_local;           // [expert rank] on this host
  std::uint64_t next_opening = 0;              // number of the meeting that open() begins with
  std::vector<ChannelImpl*> channels;          // open ones

  bool owned() const noexcept { return fork_count.load(std::memory_order_relaxed) == owner; }
  std::int32_t rank() const noexcept { return static_cast<std::int32_t>(config.world_rank); }
};

// Collective: finds the other ranks, compares configurations, opens one transport per worker.
Result<std::shared_ptr<GroupCore>> create_group(const GroupConfig& config,
                                                std::shared_ptr<Store> store);

// An exception of a set-up call as a Status: `exhausted` if memory is short. Null = not a
// std::exception.
Status status_of(const std::exception* error, const char* function, const char* setting,
                 std::int32_t rank);

}  // namespace m2n::collectives
