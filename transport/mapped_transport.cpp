#include "transport/mapped_transport.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "transport/text.hpp"

namespace m2n::transport {

bool signal_table_fits(const SignalTable& table, std::uint64_t bytes) noexcept {
  constexpr std::uint64_t word = sizeof(std::uint64_t);
  if (table.count == 0 || table.offset % word != 0 || bytes < word) return false;
  if (table.offset > bytes - word) return false;
  if (table.count == 1) return true;
  if (table.stride < word || table.stride % word != 0) return false;
  return (bytes - word - table.offset) / table.stride >= table.count - 1;
}

Capabilities MappedTransport::capabilities() const noexcept {
  Capabilities capabilities;
  capabilities.mapped = true;
  capabilities.max_segments = max_segments;
  capabilities.max_in_flight = max_in_flight;
  return capabilities;
}

Status MappedTransport::bad(std::string_view function, std::string_view argument,
                            std::string actual, std::string allowed) const {
  return refuse({function, argument, std::move(actual), std::move(allowed), rank(),
                 "transport/transport.hpp"});
}

void MappedTransport::disconnect(PeerId peer) noexcept {
  peers_.drop(peer);
}

Result<PeerId> MappedTransport::keep(Peer peer) {
  const auto id = peers_.add(std::move(peer));
  if (!id) return bad("connect", "peers", "one more", "2^20 per transport instance");
  return *id;
}

Result<RemoteId> MappedTransport::keep(RemoteMemory remote) {
  const auto id = remotes_.add(std::move(remote));
  if (!id) return bad("import_memory", "memories", "one more", "2^20 per transport instance");
  return *id;
}

Result<MemoryId> MappedTransport::add_memory(const Region& region) {
  constexpr std::size_t limit = std::numeric_limits<std::size_t>::max() / 4;
  if (region.bytes == 0 || region.bytes > limit) {
    return bad("add_memory", "bytes", std::to_string(region.bytes), "1.." + std::to_string(limit));
  }
  LocalMemory memory;
  memory.base = static_cast<std::byte*>(region.base);
  memory.bytes = region.bytes;
  if (region.base == nullptr) {
    Result<Allocation> made = allocate(region);
    if (!made) return made.status();
    memory.base = made->base;
    memory.backing = std::move(made->backing);
  }
  const auto id = memories_.add(std::move(memory));
  if (!id) return bad("add_memory", "memories", "one more", "2^20 per transport instance");
  return *id;
}

std::byte* MappedTransport::local(MemoryId memory) noexcept {
  LocalMemory* found = memories_.find(memory);
  return found != nullptr ? found->base : nullptr;
}

void MappedTransport::drop_memory(MemoryId memory) noexcept {
  memories_.drop(memory);
}

Result<MappedTransport::LocalMemory*> MappedTransport::exportable(std::string_view function,
                                                                  MemoryId memory) {
  LocalMemory* found = memories_.find(memory);
  if (found == nullptr) {
    return bad(function, "memory", "an unknown id", "what add_memory returned, not dropped");
  }
  if (found->backing == nullptr) {
    return bad(function, "memory", "the caller's own memory",
               "memory that the transport allocated (Region::base = null)");
  }
  return found;
}

Result<std::uint32_t> MappedTransport::add_signals(MemoryId memory, std::size_t offset,
                                                   std::size_t stride, std::uint32_t count) {
  const auto found = exportable("add_signals", memory);
  if (!found) return found.status();
  const SignalTable table{offset, stride, count};
  if (!signal_table_fits(table, (*found)->bytes)) {
    return bad(
        "add_signals", "offset, stride, count",
        std::to_string(offset) + ", " + std::to_string(stride) + ", " + std::to_string(count),
        "at least one word, each aligned to 8 and inside the memory's " +
            std::to_string((*found)->bytes) + " bytes");
  }
  (*found)->signals.push_back(table);
  return static_cast<std::uint32_t>((*found)->signals.size() - 1);
}

void MappedTransport::drop_remote(RemoteId remote) noexcept {
  remotes_.drop(remote);
}

Status MappedTransport::check_sources(std::span<const Segment> segments, std::size_t& total) {
  if (segments.size() > max_segments) {
    return bad("put", "segments", std::to_string(segments.size()),
               "0.." + std::to_string(max_segments));
  }
  for (const Segment& segment : segments) {
    if (segment.bytes == 0) continue;
    const LocalMemory* memory = memories_.find(segment.memory);
    if (memory == nullptr) {
      return bad("put", "segment", "an unknown memory", "what add_memory returned, not dropped");
    }
    if (segment.bytes > memory->bytes || segment.offset > memory->bytes - segment.bytes) {
      return bad("put", "segment",
                 std::to_string(segment.bytes) + " bytes at " + std::to_string(segment.offset),
                 "inside its memory of " + std::to_string(memory->bytes) + " bytes");
    }
    if (segment.bytes > std::numeric_limits<std::size_t>::max() - total) {
      return bad("put", "segments", "a sum that overflows", "the target's size");
    }
    total += segment.bytes;
  }
  return {};
}

std::uint64_t* MappedTransport::word_of(RemoteMemory& remote, SignalRef signal) noexcept {
  if (signal.table >= remote.signals.size()) return nullptr;
  const SignalTable& table = remote.signals[signal.table];
  if (signal.index >= table.count) return nullptr;
  return reinterpret_cast<std::uint64_t*>(remote.base + table.offset + table.stride * signal.index);
}

Status MappedTransport::put(PeerId peer, std::span<const Segment> segments, Target to,
                            SignalRef signal, std::uint64_t token) {
  Peer* target = peers_.find(peer);
  if (target == nullptr) return bad("put", "peer", "an unknown id", "what connect returned");
  if (target->dead) {
    return {Code::peer_failed, Scope::peer,
            "put: rank " + std::to_string(target->world_rank) + " has ended",
            static_cast<std::int32_t>(target->world_rank)};
  }
  std::size_t total = 0;
  if (Status status = check_sources(segments, total); !status) return status;
  RemoteMemory* signalled = remotes_.find(signal.memory);
  if (signalled == nullptr || signalled->peer != peer) {
    return bad("put", "signal", "a memory that is not this peer's", "what import_memory returned");
  }
  std::uint64_t* word = word_of(*signalled, signal);
  if (word == nullptr) {
    return bad("put", "signal",
               "word " + std::to_string(signal.index) + " of table " + std::to_string(signal.table),
               "words that the peer registered with add_signals");
  }
  if (count_ == max_in_flight) return Code::again;
  if (total != 0) {
    RemoteMemory* memory = remotes_.find(to.memory);
    if (memory == nullptr || memory->peer != peer) {
      return bad("put", "target", "a memory that is not this peer's",
                 "what import_memory returned");
    }
    if (total > memory->bytes || to.offset > memory->bytes - total) {
      return bad("put", "target", std::to_string(total) + " bytes at " + std::to_string(to.offset),
                 "inside its memory of " + std::to_string(memory->bytes) + " bytes");
    }
    std::byte* out = memory->base + to.offset;
    for (const Segment& segment : segments) {
      if (segment.bytes == 0) continue;
      std::memmove(out, memories_.find(segment.memory)->base + segment.offset, segment.bytes);
      out += segment.bytes;
    }
  }
  // One writer per word, so that reading it back needs no order.
  const std::uint64_t before =
      std::atomic_ref<std::uint64_t>{*word}.load(std::memory_order_relaxed);
  publish(word, before + 1);
  target->doorbell->ring();
  finished_[(first_ + count_) % max_in_flight] = token;
  ++count_;
  return {};
}

std::size_t MappedTransport::progress(std::span<Completion> out) {
  const std::size_t taken = std::min<std::size_t>(out.size(), count_);
  for (std::size_t i = 0; i < taken; ++i) {
    out[i].token = finished_[first_];
    out[i].status = Status{};
    first_ = (first_ + 1) % max_in_flight;
  }
  count_ -= static_cast<std::uint32_t>(taken);
  return taken;
}

std::byte* MappedTransport::map(RemoteId remote) noexcept {
  RemoteMemory* found = remotes_.find(remote);
  return found != nullptr ? found->base : nullptr;
}

std::uint64_t* MappedTransport::map_signal(SignalRef signal) noexcept {
  RemoteMemory* found = remotes_.find(signal.memory);
  return found != nullptr ? word_of(*found, signal) : nullptr;
}

void MappedTransport::notify(PeerId peer) noexcept {
  Peer* found = peers_.find(peer);
  if (found != nullptr && !found->dead) found->doorbell->ring();
}

Result<int> MappedTransport::event_descriptor() {
  if (events_ == nullptr) {
    Result<std::unique_ptr<EventSet>> made = EventSet::make(rank());
    if (!made) return made.status();
    events_ = std::move(*made);
    doorbell().set_pipe(events_->pipe());
    watch_peers();
  }
  return events_->descriptor();
}

Status MappedTransport::arm_events(std::chrono::nanoseconds recheck) {
  if (events_ == nullptr) {
    return refuse({"arm_events", "descriptor", "none", "one that was asked for before", rank(),
                   "Group::event_descriptor"});
  }
  events_->drain(recheck);
  doorbell().arm();
  return {};
}

}  // namespace m2n::transport
