#include "collectives/worker.hpp"

#include <algorithm>

#include "collectives/channel_end.hpp"
#include "collectives/pair_link.hpp"

namespace m2n::collectives {

Worker::Worker(std::unique_ptr<transport::Transport> transport, std::uint32_t world_rank,
               std::uint32_t index)
    : transport_{std::move(transport)}, world_rank_{world_rank}, index_{index} {}

Result<transport::PeerId> Worker::connect(std::uint32_t rank, std::uint32_t worker,
                                          std::span<const std::byte> address) {
  const auto key = std::pair{rank, worker};
  if (const auto found = peers_.find(key); found != peers_.end()) return found->second;
  Result<transport::PeerId> peer = transport_->connect(address);
  if (peer) peers_.emplace(key, *peer);
  return peer;
}

void Worker::add(PairLink* link) {
  const auto hole = std::find(links_.begin(), links_.end(), nullptr);
  link->set_id(static_cast<std::uint32_t>(hole - links_.begin()));
  if (hole == links_.end()) {
    links_.push_back(link);
  } else {
    *hole = link;
  }
}

void Worker::remove(PairLink* link) noexcept {
  if (link->id() < links_.size() && links_[link->id()] == link) links_[link->id()] = nullptr;
}

void Worker::pump() {
  const std::size_t count = transport_->progress(completions_);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t token = completions_[i].token;
    PairLink* link = token >> 8 < links_.size() ? links_[token >> 8] : nullptr;
    if (link != nullptr)
      link->completed(static_cast<std::uint32_t>(token & 0xff), completions_[i].status);
  }
  for (PairLink* link : links_) {
    if (link != nullptr) link->pump();
  }
}

void Worker::take_messages() {
  for (ChannelEnd* end : ends_) end->take_messages();
}

void Worker::check_peers() {
  // Asking is a system call for some transports.
  constexpr std::chrono::milliseconds interval{5};
  const auto now = std::chrono::steady_clock::now();
  if (now < next_check_) return;
  next_check_ = now + interval;
  for (Status dead = transport_->take_failure(); !dead; dead = transport_->take_failure()) {
    for (PairLink* link : links_) {
      if (link != nullptr && static_cast<std::int32_t>(link->peer_rank()) == dead.peer())
        link->fail(dead);
    }
  }
}

bool Worker::has_pending() const noexcept {
  return std::any_of(links_.begin(), links_.end(),
                     [](const PairLink* link) { return link != nullptr && link->has_pending(); });
}

}  // namespace m2n::collectives
