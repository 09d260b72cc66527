// The ranks that talk to each other, and their transports. Set up by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "m2n/channel.hpp"
#include "m2n/config.hpp"
#include "m2n/export.hpp"
#include "m2n/status.hpp"
#include "m2n/store.hpp"

namespace m2n {

class M2N_EXPORT Group {
 public:
  Group() = default;
  // Collective over all ranks: finds the others through the store and compares the configurations.
  // It succeeds on all ranks or fails on all: `invalid` where configurations differ, a rank refuses
  // or is there twice; `timeout` as soon as one rank's start_timeout is over, naming who is
  // missing. After a failure all ranks may call it again.
  static Result<Group> create(const GroupConfig& config, std::shared_ptr<Store> store);

  explicit operator bool() const noexcept { return impl_ != nullptr; }
  // Collective over all ranks: registers windows and exchanges them. Every rank opens its channels
  // in the same order. Fails as create does, and `exhausted` or `system` where memory is short; a
  // call that timed out may be made again.
  Result<Channel> open(const ChannelConfig& config, const OpenOptions& options = {});
  // Pushes what waits in all ends of a worker. Never blocks.
  Status progress(std::uint32_t worker = 0);
  // For ranks that sleep in poll, epoll or the like with descriptors of their own
  // (docs/threads.md). A descriptor that becomes readable, after arm_events, when something may
  // have come for the worker's channel ends, when a peer has died, and 20 ms later at the latest.
  // The same at every call; the group closes it with its last channel, ticket and batch. Read
  // nothing from it. `unavailable` where the transport has none, `system` without 3 descriptors.
  Result<int> event_descriptor(std::uint32_t worker = 0);
  // progress(), and from now on the next arrival makes the descriptor readable, once; it is not
  // readable before. Then call the try_ forms, and sleep only if each of them says `again`.
  // `invalid` without event_descriptor.
  Status arm_events(std::uint32_t worker = 0);
  // Closes every channel. Local, within a second. The destructor does the same.
  Status close();

  const GroupConfig& config() const noexcept;
  // The transport in use, for reports.
  std::string transport() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace m2n
