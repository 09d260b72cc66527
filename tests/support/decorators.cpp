#include "tests/support/decorators.hpp"

#include <algorithm>
#include <utility>

namespace m2n::testing {

using namespace m2n::transport;

Capabilities Decorator::capabilities() const noexcept {
  Capabilities capabilities = inner_->capabilities();
  capabilities.mapped = false;
  return capabilities;
}
Result<PeerId> Decorator::connect(std::span<const std::byte> address) {
  return inner_->connect(address);
}
Result<MemoryId> Decorator::add_memory(const Region& region) {
  return inner_->add_memory(region);
}
Result<std::uint32_t> Decorator::add_signals(MemoryId memory, std::size_t offset,
                                             std::size_t stride, std::uint32_t count) {
  return inner_->add_signals(memory, offset, stride, count);
}
Result<Blob> Decorator::export_memory(MemoryId memory) {
  return inner_->export_memory(memory);
}
Result<RemoteId> Decorator::import_memory(PeerId peer, std::span<const std::byte> blob) {
  return inner_->import_memory(peer, blob);
}
Status Decorator::put(PeerId peer, std::span<const Segment> segments, Target to, SignalRef signal,
                      std::uint64_t token) {
  return inner_->put(peer, segments, to, signal, token);
}
std::size_t Decorator::progress(std::span<Completion> out) {
  return inner_->progress(out);
}

std::size_t HoldingDecorator::progress(std::span<Completion> out) {
  release();
  std::size_t written = 0;
  for (; written < out.size() && !completed_.empty(); ++written) {
    out[written] = std::move(completed_.front());
    completed_.pop_front();
  }
  return written + inner_->progress(out.subspan(written));
}

bool HoldingDecorator::begin(std::size_t index) {
  const HeldPut& held = held_[index];
  const Status status = inner_->put(held.peer, held.segments, held.to, held.signal, held.token);
  if (status.code() == Code::again) return false;
  if (!status) complete(held.token, status);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  return true;
}

void HoldingDecorator::complete(std::uint64_t token, Status status) {
  completed_.push_back({token, std::move(status)});
}

bool FaultyTransport::setup_fails() {
  if (faults_->setup_calls.fetch_add(1) != faults_->setup_fail_at.load()) return false;
  faults_->injected.fetch_add(1);
  return true;
}
static Status injected(const char* call) {
  return {Code::system, Scope::operation, std::string{"injected failure of "} + call};
}
Result<PeerId> FaultyTransport::connect(std::span<const std::byte> address) {
  if (setup_fails()) return injected("connect");
  return inner_->connect(address);
}
Result<MemoryId> FaultyTransport::add_memory(const Region& region) {
  if (setup_fails()) return injected("add_memory");
  return inner_->add_memory(region);
}
Result<std::uint32_t> FaultyTransport::add_signals(MemoryId memory, std::size_t offset,
                                                   std::size_t stride, std::uint32_t count) {
  if (setup_fails()) return injected("add_signals");
  return inner_->add_signals(memory, offset, stride, count);
}
Result<Blob> FaultyTransport::export_memory(MemoryId memory) {
  if (setup_fails()) return injected("export_memory");
  return inner_->export_memory(memory);
}
Result<RemoteId> FaultyTransport::import_memory(PeerId peer, std::span<const std::byte> blob) {
  if (setup_fails()) return injected("import_memory");
  return inner_->import_memory(peer, blob);
}

Status FaultyTransport::killed() const {
  return {Code::peer_failed, Scope::peer, "injected death of a peer",
          faults_->killed_world_rank.load()};
}

static bool hits(std::uint64_t attempt, std::uint64_t at, std::uint64_t every = 0) {
  return attempt == at || (every != 0 && (attempt + 1) % every == 0);
}

Status FaultyTransport::put(PeerId peer, std::span<const Segment> segments, Target to,
                            SignalRef signal, std::uint64_t token) {
  const std::uint64_t attempt = faults_->puts.fetch_add(1);
  if (attempt >= faults_->kill_at.load()) {
    faults_->injected.fetch_add(1);
    return killed();
  }
  if (hits(attempt, faults_->put_fail_at.load())) {
    faults_->injected.fetch_add(1);
    return injected("put");
  }
  if (hits(attempt, faults_->put_again_at.load(), faults_->again_every.load())) {
    faults_->injected.fetch_add(1);
    return Code::again;
  }
  if (hits(attempt, faults_->put_break_at.load())) {
    faults_->injected.fetch_add(1);
    complete(token, injected("a put under way"));
    return {};
  }
  const bool delayed = hits(attempt, faults_->put_delay_at.load(), faults_->delay_every.load());
  const Capabilities limits = inner_->capabilities();
  if (delayed && segments.size() <= limits.max_segments) {
    if (held_.size() >= limits.max_in_flight) return Code::again;
    faults_->injected.fetch_add(1);
    hold({peer,
          {segments.begin(), segments.end()},
          to,
          signal,
          token,
          calls_ + faults_->delay_calls.load()});
    return {};
  }
  return inner_->put(peer, segments, to, signal, token);
}

void FaultyTransport::release() {
  ++calls_;
  for (std::size_t i = 0; i < held_.size();) {
    if (held_[i].release_at > calls_ || !begin(i)) ++i;
  }
}

void FaultyTransport::notify(PeerId peer) noexcept {
  const std::uint64_t call = faults_->notifies.fetch_add(1);
  if (hits(call, Faults::never, faults_->swallow_notify_every.load())) {
    faults_->injected.fetch_add(1);
    return;
  }
  inner_->notify(peer);
}

Status FaultyTransport::take_failure() {
  if (!reported_ && faults_->puts.load() > faults_->kill_at.load()) {
    reported_ = true;
    return killed();
  }
  return inner_->take_failure();
}

Status ReorderTransport::put(PeerId peer, std::span<const Segment> segments, Target to,
                             SignalRef signal, std::uint64_t token) {
  const Capabilities limits = inner_->capabilities();
  if (segments.size() > limits.max_segments) return inner_->put(peer, segments, to, signal, token);
  std::vector<std::size_t> of_pair;
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].peer == peer) of_pair.push_back(i);
  }
  if (of_pair.size() >= window_ && !begin(of_pair[random_() % of_pair.size()])) return Code::again;
  hold({peer, {segments.begin(), segments.end()}, to, signal, token, 0});
  return {};
}

void ReorderTransport::release() {
  if (held_.empty()) return;
  // At least one, so that calling progress() often enough ends it.
  const std::size_t count = 1 + random_() % held_.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (!begin(random_() % held_.size())) return;
  }
}

Status CountedTransport::put(PeerId peer, std::span<const Segment> segments, Target to,
                             SignalRef signal, std::uint64_t token) {
  Status status = inner_->put(peer, segments, to, signal, token);
  if (status) {
    std::uint64_t bytes = 0;
    for (const Segment& segment : segments) bytes += segment.bytes;
    counts_->puts.fetch_add(1);
    counts_->bytes.fetch_add(bytes);
  } else if (status.code() == Code::again) {
    counts_->agains.fetch_add(1);
  }
  return status;
}

std::size_t CountedTransport::progress(std::span<Completion> out) {
  counts_->progress_calls.fetch_add(1);
  const std::size_t written = inner_->progress(out);
  counts_->completions.fetch_add(written);
  return written;
}

void CountedTransport::notify(PeerId peer) noexcept {
  counts_->notifies.fetch_add(1);
  inner_->notify(peer);
}

}  // namespace m2n::testing
