#include "collectives/channel_end.hpp"

#include <sched.h>

#include <algorithm>
#include <string>

#include "collectives/wait.hpp"

namespace m2n::collectives {
namespace {

// Two ends may close one after the other, within a second.
constexpr std::chrono::milliseconds close_patience{400};

}  // namespace

Status ChannelContext::check(std::string_view function) const {
  if (!group->owned()) return used_in_child(function, rank());
  switch (state.load(std::memory_order_acquire)) {
    case ChannelState::open:
      return {};
    case ChannelState::closed:
      return {Code::closed, Scope::operation,
              std::string{function} + ": channel \"" + config.name + "\" is closed (rank " +
                  std::to_string(rank()) + ")"};
    case ChannelState::aborted:
      return {Code::aborted, Scope::group,
              std::string{function} + ": channel \"" + config.name + "\" was aborted (rank " +
                  std::to_string(rank()) + ")"};
  }
  return {};
}

void ChannelEnd::links_ready() {
  peer_closed_.assign(links_.size(), false);
  drains_.assign(links_.size(), {});
  peer_statistics_.assign(links_.size(), {});
}

void ChannelEnd::announce_close() {
  for (auto& link : links_) {
    if (link->attached() && link->health()) link->send(message_of(ControlType::close));
  }
  worker_.pump();
  // Staging and windows go with this end: what it has said must be out before, or a peer that
  // still drains waits for it in vain. A transport that moves nothing gets no more than this time.
  const Clock::time_point end = Clock::now() + close_patience;
  while (has_pending() && Clock::now() < end) {
    sched_yield();
    worker_.pump();
    worker_.check_peers();
  }
}

bool ChannelEnd::has_pending() const noexcept {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link->health() && link->has_pending(); });
}

void ChannelEnd::pump() {
  worker_.pump();
  worker_.check_peers();
  worker_.take_messages();
}

void ChannelEnd::take_messages() {
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
    ControlMessage message;
    // Also from a peer that has ended: what it said before still counts, its drain above all.
    for (std::uint32_t i = 0; i < control_ring && links_[peer]->take(message); ++i) {
      if (message.type == ControlType::close) {
        peer_closed_[peer] = true;
      } else if (message.type == ControlType::drained) {
        drains_[peer].heard({message.body[0], message.body[1]});
      } else {
        on_message(peer, message);
      }
    }
  }
}

Status ChannelEnd::check_link(const PairLink& link, std::string_view function) const {
  if (!link.health()) {
    return {link.health().code(), link.health().scope(),
            std::string{function} + ": " + link.health().text() + " (rank " +
                std::to_string(context_.rank()) + ", channel \"" + context_.config.name + "\")",
            static_cast<std::int32_t>(link.peer_rank())};
  }
  return {};
}

void ChannelEnd::begin_drain() {
  take_messages();
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer)
    drains_[peer].begin(peer_statistics_[peer].rounds);
}

Status ChannelEnd::try_drain() {
  take_messages();
  bool all = true;
  Status wrong;  // of one peer; the others hear of us all the same
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
    PairDrain& drain = drains_[peer];
    if (drain.owes() && say_drained(peer)) drain.said();
    if (drain.agreed()) continue;
    blame(peer);
    all = false;
    if (!wrong) continue;
    wrong = check_link(*links_[peer], "drain");
    if (wrong && peer_closed_[peer]) wrong = closed_by_peer("drain");
  }
  if (!wrong) return wrong;
  // The caller may leave for good: nothing of this end may wait for another call.
  return all && !has_pending() ? Status{} : Status{Code::again};
}

// False if it has to be tried again. Nobody hears it where the peer has gone.
bool ChannelEnd::say_drained(std::uint32_t peer) {
  if (peer_closed_[peer] || !links_[peer]->health()) return true;
  const PairDrain::Words words = drains_[peer].words();
  ControlMessage message = message_of(ControlType::drained);
  message.body[0] = words.rounds;
  message.body[1] = words.count;
  return links_[peer]->send(message);
}

void ChannelEnd::finish_drain() {
  for (PairDrain& drain : drains_) drain.finish();
}

Status ChannelEnd::check_missing(std::string_view function) const {
  Status status = check_link(*links_[missing_], function);
  return status ? Status{Code::again} : status;
}

Status ChannelEnd::closed_by_peer(std::string_view function) const {
  const auto peer = static_cast<std::int32_t>(links_[missing_]->peer_rank());
  return {Code::closed, Scope::peer,
          std::string{function} + ": world rank " + std::to_string(peer) +
              " has closed channel \"" + context_.config.name + "\" (rank " +
              std::to_string(context_.rank()) + ")",
          peer};
}

std::string ChannelEnd::waits_for(std::uint64_t operation, const char* peer_role) const {
  return "operation " + std::to_string(operation) + " of channel \"" + context_.config.name +
         "\" still waits for " + peer_role + " rank " + std::to_string(missing_) + " (world rank " +
         std::to_string(links_[missing_]->peer_rank()) + ")";
}

Status ChannelEnd::timed_out(std::string_view function, std::uint64_t operation,
                             const char* peer_role) const {
  const PairLink& link = *links_[missing_];
  return {Code::timeout, Scope::operation,
          std::string{function} + ": " + waits_for(operation, peer_role) + " on rank " +
              std::to_string(context_.rank()) +
              "; see GroupConfig::step_timeout or M2N_STEP_TIMEOUT_MS",
          static_cast<std::int32_t>(link.peer_rank())};
}

}  // namespace m2n::collectives
