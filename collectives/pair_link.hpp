// One end of a pair: the window that the peer writes to, and the way to the peer's window. Rounds
// go out and come in by slots; control messages by a small ring in front of them. Owned by a
// channel end, used by the thread of its worker.
//
// Mapped pairs write straight into the peer's window and raise its word themselves. Other pairs
// write into a staging window of the same layout and put each round from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/control.hpp"
#include "collectives/layout.hpp"
#include "collectives/slot.hpp"
#include "collectives/worker.hpp"
#include "m2n/status.hpp"

namespace m2n::collectives {

struct LinkSetup {
  WindowLayout in;
  WindowLayout out;
  std::uint32_t peer_rank = 0;  // world rank
  bool huge_pages = false;
};

class PairLink {
 public:
  // Registers the in-window. Blocks.
  static Result<std::unique_ptr<PairLink>> create(Worker& worker, const LinkSetup& setup);
  ~PairLink();
  PairLink(const PairLink&) = delete;
  PairLink& operator=(const PairLink&) = delete;

  // Set-up: what the peer imports; importing the peer's; the peer has imported ours.
  Result<transport::Blob> export_window();
  Status attach(transport::PeerId peer, std::span<const std::byte> blob);
  void seal() noexcept;

  // --- rounds out ---
  // Where this round's slot is written: header first. Null while an earlier put still reads the
  // staging.
  std::byte* begin(std::uint64_t round);
  // Copies the header's fields behind the words into the slot, once per round. Call it late, right
  // before the reader is told: it polls this very line, and each time the line goes back and forth
  // costs as much as the signal.
  void write_header(std::uint64_t round, const SlotHeader& header) noexcept;
  // Of a header that was written, before the round is complete: the reader asks again then.
  void change_status(std::uint64_t round, ReplyStatus status) noexcept;
  // Offset in the slot for a body of so many bytes.
  std::size_t place(std::uint64_t round, std::size_t body_bytes) noexcept;
  // Mapped pairs: the reader may take the header, the row information and the first `lines` cache
  // lines of the rows already. Else nothing.
  void tell(std::uint64_t round, std::uint32_t lines) noexcept;
  // How many lines of a round of so many are worth telling the reader of: a quarter of it, but not
  // less than what makes up for the signal, and often enough that both sides stay busy.
  std::size_t piece_lines(std::size_t round_lines) const noexcept;
  // The round is complete: header and `body_bytes` from its body_offset on.
  void finish(std::uint64_t round, std::size_t body_bytes);
  // Everything of this round has been handed to the transport.
  bool issued(std::uint64_t round) const noexcept;
  // The local source of this round is not needed any more.
  bool sent(std::uint64_t round) const noexcept;

  // --- rounds in ---
  bool complete(std::uint64_t round) const noexcept;
  struct Arrived {
    bool header = false;      // it may be read, and the row information
    std::uint32_t lines = 0;  // cache lines of rows that may be read; all_lines once complete
  };
  static constexpr std::uint32_t all_lines = 0xffff'ffffu;
  Arrived arrived(std::uint64_t round) const noexcept;
  std::byte* slot(std::uint64_t round) const noexcept { return in_base_ + in_.slot_offset(round); }
  const SlotHeader& header(std::uint64_t round) const noexcept {
    return *reinterpret_cast<const SlotHeader*>(slot(round));
  }

  // Mapped pairs: the rows of this round of ours were copied by the peer | tell the peer that we
  // have.
  bool gathered(std::uint64_t round) const noexcept;
  void say_gathered(std::uint64_t round) noexcept;

  // --- control messages ---
  // False when the ring is full: pump and try again.
  bool send(const ControlMessage& message);
  bool take(ControlMessage& message);

  // --- state ---
  const WindowLayout& in() const noexcept { return in_; }
  const WindowLayout& out() const noexcept { return out_; }
  bool attached() const noexcept { return out_base_ != nullptr; }
  bool mapped() const noexcept { return mapped_; }
  std::uint32_t peer_rank() const noexcept { return peer_rank_; }
  transport::PeerId peer() const noexcept { return peer_; }
  Worker& worker() noexcept { return worker_; }
  bool has_pending() const noexcept { return waiting_ != 0 || in_flight_ != 0; }
  // ok, or why this pair cannot be used any more.
  const Status& health() const noexcept { return health_; }
  void fail(Status status);

  // Called by the worker.
  void pump();
  void completed(std::uint32_t item, const Status& status);
  void set_id(std::uint32_t id) noexcept { id_ = id; }
  std::uint32_t id() const noexcept { return id_; }

 private:
  void fill(std::uint64_t round, std::uint32_t lines) noexcept;
  // Items of the waiting and in-flight masks: slots, then control slots, then the taken word.
  static constexpr std::uint32_t control_item = 16;
  static constexpr std::uint32_t taken_item = control_item + control_ring;

  PairLink(Worker& worker, const LinkSetup& setup);
  Status register_windows(bool huge_pages);
  void raise(std::uint32_t item);
  bool put(std::uint32_t item);
  std::uint64_t generation(std::uint64_t round) const noexcept { return round / in_.depth + 1; }

  Worker& worker_;
  WindowLayout in_;
  WindowLayout out_;
  std::uint32_t peer_rank_;
  std::uint32_t id_ = 0;
  bool mapped_ = false;
  Status health_;
  transport::PeerId peer_{};
  transport::MemoryId in_memory_{};
  transport::MemoryId staging_memory_{};
  transport::RemoteId out_memory_{};
  bool has_in_ = false;
  bool has_staging_ = false;
  bool has_out_ = false;
  std::byte* in_base_ = nullptr;
  std::byte* out_base_ = nullptr;          // the peer's window if mapped, else the staging window
  std::vector<std::uint64_t*> out_words_;  // mapped, per slot: its signal at the peer
  std::vector<std::size_t> cursor_;        // per slot: where the next body goes
  std::vector<std::size_t> body_bytes_;    // per slot: of the round that waits to be put
  std::vector<std::uint64_t> headed_;      // per slot: generation of the last header written
  std::uint64_t waiting_ = 0;              // bit per item: to be put
  std::uint64_t in_flight_ = 0;            // bit per item: put, not completed
  std::uint64_t control_sent_ = 0;
  std::uint64_t control_taken_ = 0;
  std::uint64_t taken_owed_ = 0;  // raises of the peer's taken word that wait
};

}  // namespace m2n::collectives
