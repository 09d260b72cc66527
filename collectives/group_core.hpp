// What the channels of one rank share: configuration, workers, who is where. Built by
// Group::create; after that only `channels` changes, at open and close.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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

struct GroupCore {
  const std::uint64_t owner = watch_forks();  // a forked copy must say nothing to the peers
  GroupConfig config;
  std::shared_ptr<Store> store;
  std::string prefix;  // of this group's keys in the store
  std::string job;     // nonce, equal on all ranks
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
  std::uint32_t channels_opened = 0;
  std::vector<ChannelImpl*> channels;  // open ones

  bool owned() const noexcept { return fork_count.load(std::memory_order_relaxed) == owner; }
  std::int32_t rank() const noexcept { return static_cast<std::int32_t>(config.world_rank); }
};

}  // namespace m2n::collectives
