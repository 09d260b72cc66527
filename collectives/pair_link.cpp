#include "collectives/pair_link.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

namespace m2n::collectives {
namespace {

using transport::publish;

// Signal tables of a window.
constexpr std::uint32_t control_table = 0;
constexpr std::uint32_t taken_table = 1;
constexpr std::uint32_t slot_table = 2;

ControlBlock& control_of(std::byte* base) {
  return *reinterpret_cast<ControlBlock*>(base);
}

}  // namespace

PairLink::PairLink(Worker& worker, const LinkSetup& setup)
    : worker_{worker},
      in_{setup.in},
      out_{setup.out},
      peer_rank_{setup.peer_rank},
      cursor_(setup.out.depth, sizeof(SlotHeader)),
      body_bytes_(setup.out.depth),
      headed_(setup.out.depth) {}

Result<std::unique_ptr<PairLink>> PairLink::create(Worker& worker, const LinkSetup& setup) {
  std::unique_ptr<PairLink> link{new PairLink(worker, setup)};
  if (Status status = link->register_windows(setup.huge_pages); !status) return status;
  worker.add(link.get());
  return link;
}

Status PairLink::register_windows(bool huge_pages) {
  transport::Transport& transport = worker_.transport();
  Result<transport::MemoryId> memory =
      transport.add_memory({nullptr, in_.window_bytes(), huge_pages});
  if (!memory) return memory.status();
  in_memory_ = *memory;
  has_in_ = true;
  in_base_ = transport.local(in_memory_);
  const std::size_t taken = offsetof(ControlBlock, taken);
  Result<std::uint32_t> control =
      transport.add_signals(in_memory_, 0, sizeof(ControlSlot), control_ring);
  if (!control) return control.status();
  Result<std::uint32_t> taken_word =
      transport.add_signals(in_memory_, taken, sizeof(std::uint64_t), 1);
  if (!taken_word) return taken_word.status();
  Result<std::uint32_t> words =
      transport.add_signals(in_memory_, in_.control_bytes, in_.slot_bytes, in_.depth);
  if (!words) return words.status();
  return {};
}

PairLink::~PairLink() {
  worker_.remove(this);
  transport::Transport& transport = worker_.transport();
  if (has_out_) transport.drop_remote(out_memory_);
  if (has_staging_) transport.drop_memory(staging_memory_);
  if (has_in_) transport.drop_memory(in_memory_);
}

Result<transport::Blob> PairLink::export_window() {
  return worker_.transport().export_memory(in_memory_);
}

Status PairLink::attach(transport::PeerId peer, std::span<const std::byte> blob) {
  transport::Transport& transport = worker_.transport();
  peer_ = peer;
  Result<transport::RemoteId> remote = transport.import_memory(peer, blob);
  if (!remote) return remote.status();
  out_memory_ = *remote;
  has_out_ = true;
  out_base_ = transport.map(out_memory_);
  mapped_ = out_base_ != nullptr;
  for (std::uint32_t slot = 0; mapped_ && slot < out_.depth; ++slot)
    out_words_.push_back(transport.map_signal({out_memory_, slot_table, slot}));
  if (mapped_) return {};
  Result<transport::MemoryId> staging = transport.add_memory({nullptr, out_.window_bytes(), false});
  if (!staging) return staging.status();
  staging_memory_ = *staging;
  has_staging_ = true;
  out_base_ = transport.local(staging_memory_);
  return {};
}

void PairLink::seal() noexcept {
  worker_.transport().seal_memory(in_memory_);
}

std::byte* PairLink::begin(std::uint64_t round) {
  const std::uint32_t slot = static_cast<std::uint32_t>(round % out_.depth);
  if (!mapped_ && ((waiting_ | in_flight_) >> slot & 1) != 0) {
    worker_.pump();
    if (((waiting_ | in_flight_) >> slot & 1) != 0) return nullptr;
  }
  return out_base_ + out_.slot_offset(round);
}

void PairLink::write_header(std::uint64_t round, const SlotHeader& header) noexcept {
  std::uint64_t& headed = headed_[round % out_.depth];
  if (headed == generation(round)) return;
  headed = generation(round);
  std::memcpy(out_base_ + out_.slot_offset(round) + put_offset,
              reinterpret_cast<const std::byte*>(&header) + put_offset,
              offsetof(SlotHeader, gathered) - put_offset);
}

void PairLink::change_status(std::uint64_t round, ReplyStatus status) noexcept {
  auto& header = *reinterpret_cast<SlotHeader*>(out_base_ + out_.slot_offset(round));
  std::atomic_ref{header.status}.store(status, std::memory_order_relaxed);
}

std::size_t PairLink::place(std::uint64_t round, std::size_t body_bytes) noexcept {
  if (!mapped_) return sizeof(SlotHeader);
  std::size_t& cursor = cursor_[round % out_.depth];
  std::size_t offset = cursor;
  if (offset + body_bytes > out_.slot_bytes) offset = sizeof(SlotHeader);
  cursor = (offset + body_bytes + 63) & ~std::size_t{63};
  return offset;
}

void PairLink::tell(std::uint64_t round, std::uint32_t lines) noexcept {
  if (!mapped_) return;
  fill(round, lines);
  // No full fence: a sleeper that misses this hears of the next piece, or of the end for certain.
  worker_.transport().notify(peer_);
}

void PairLink::fill(std::uint64_t round, std::uint32_t lines) noexcept {
  auto& header = *reinterpret_cast<SlotHeader*>(out_base_ + out_.slot_offset(round));
  transport::store_release(&header.filled, generation(round) << 32 | (lines + 1));
}

std::size_t PairLink::piece_lines(std::size_t round_lines) const noexcept {
  constexpr std::size_t least = 64;
  constexpr std::size_t most = 1024;
  return mapped_ ? std::clamp(round_lines / 4, least, most) : ~std::size_t{0};
}

void PairLink::finish(std::uint64_t round, std::size_t body_bytes) {
  const std::uint32_t slot = static_cast<std::uint32_t>(round % out_.depth);
  if (mapped_) {
    fill(round,
         all_lines - 1);  // or its 32 bits of the generation would mean this round again one day
    publish(out_words_[slot], generation(round));
    worker_.transport().notify(peer_);
    return;
  }
  body_bytes_[slot] = body_bytes;
  raise(slot);
}

bool PairLink::issued(std::uint64_t round) const noexcept {
  return (waiting_ >> (round % out_.depth) & 1) == 0;
}

bool PairLink::sent(std::uint64_t round) const noexcept {
  return ((waiting_ | in_flight_) >> (round % out_.depth) & 1) == 0;
}

bool PairLink::complete(std::uint64_t round) const noexcept {
  return transport::load_acquire(&header(round).word) >= generation(round);
}

PairLink::Arrived PairLink::arrived(std::uint64_t round) const noexcept {
  const SlotHeader& slot_header = header(round);
  const std::uint64_t filled = transport::load_acquire(&slot_header.filled);
  if (transport::load_acquire(&slot_header.word) >= generation(round)) return {true, all_lines};
  const auto told = static_cast<std::uint32_t>(filled);
  if (filled >> 32 != (generation(round) & 0xffff'ffffu) || told == 0) return {};
  return {true, told - 1};
}

bool PairLink::gathered(std::uint64_t round) const noexcept {
  return transport::load_acquire(&header(round).gathered) >= generation(round);
}

void PairLink::say_gathered(std::uint64_t round) noexcept {
  auto& slot_header = *reinterpret_cast<SlotHeader*>(out_base_ + out_.slot_offset(round));
  transport::store_release(&slot_header.gathered, generation(round));
}

bool PairLink::send(const ControlMessage& message) {
  const std::uint64_t taken = transport::load_acquire(&control_of(in_base_).taken);
  const auto index = static_cast<std::uint32_t>(control_sent_ % control_ring);
  const std::uint32_t item = control_item + index;
  if (control_sent_ - taken >= control_ring || ((waiting_ | in_flight_) >> item & 1) != 0)
    return false;
  control_of(out_base_).slots[index].message = message;
  const std::uint64_t word = control_sent_++ / control_ring + 1;
  if (mapped_) {
    publish(worker_.transport().map_signal({out_memory_, control_table, index}), word);
    worker_.transport().notify(peer_);
  } else {
    raise(item);
  }
  return true;
}

bool PairLink::take(ControlMessage& message) {
  const auto index = static_cast<std::uint32_t>(control_taken_ % control_ring);
  ControlSlot& slot = control_of(in_base_).slots[index];
  const std::uint64_t next = control_taken_ / control_ring + 1;
  const std::uint64_t word = transport::load_acquire(&slot.word);
  if (word < next) return false;
  if (word > next) {  // nobody may write so far ahead
    fail({Code::peer_failed, Scope::peer,
          "world rank " + std::to_string(peer_rank_) + " broke the protocol: control word " +
              std::to_string(word) + " where " + std::to_string(next) + " is next",
          static_cast<std::int32_t>(peer_rank_)});
    return false;
  }
  message = slot.message;
  ++control_taken_;
  if (mapped_) {
    publish(worker_.transport().map_signal({out_memory_, taken_table, 0}), control_taken_);
  } else {
    ++taken_owed_;
    raise(taken_item);
  }
  return true;
}

void PairLink::raise(std::uint32_t item) {
  waiting_ |= std::uint64_t{1} << item;
  pump();
}

void PairLink::pump() {
  if (waiting_ == 0 || !health_) return;
  for (std::uint32_t item = 0; item <= taken_item; ++item) {
    const std::uint64_t bit = std::uint64_t{1} << item;
    if ((waiting_ & bit) == 0 || (in_flight_ & bit) != 0) continue;
    if (!put(item)) return;
  }
}

// False if the transport is full.
bool PairLink::put(std::uint32_t item) {
  transport::Segment segment{staging_memory_, 0, 0};
  transport::SignalRef signal{out_memory_, slot_table, item};
  if (item == taken_item) {
    signal = {out_memory_, taken_table, 0};
  } else if (item >= control_item) {
    signal = {out_memory_, control_table, item - control_item};
    segment.offset = (item - control_item) * sizeof(ControlSlot) + offsetof(ControlSlot, message);
    segment.bytes = sizeof(ControlMessage);
  } else {
    segment.offset = out_.slot_offset(item) + put_offset;
    segment.bytes = sizeof(SlotHeader) - put_offset + body_bytes_[item];
  }
  const std::uint64_t token = std::uint64_t{id_} << 8 | item;
  const std::size_t segments = segment.bytes == 0 ? 0 : 1;
  Status status = worker_.transport().put(peer_, {&segment, segments},
                                          {out_memory_, segment.offset}, signal, token);
  if (status.code() == Code::again) return false;
  if (!status) {
    fail(std::move(status));
    return false;
  }
  const std::uint64_t bit = std::uint64_t{1} << item;
  in_flight_ |= bit;
  if (item != taken_item || --taken_owed_ == 0) waiting_ &= ~bit;
  return true;
}

void PairLink::completed(std::uint32_t item, const Status& status) {
  in_flight_ &= ~(std::uint64_t{1} << item);
  if (!status) fail(status);
}

void PairLink::fail(Status status) {
  if (!health_) return;
  health_ = std::move(status);
  waiting_ = 0;
}

}  // namespace m2n::collectives
