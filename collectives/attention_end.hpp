// The attention side of a channel: dispatch, and combine of what comes back. Used by its worker's
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/arena.hpp"
#include "collectives/channel_end.hpp"
#include "collectives/exchange_choice.hpp"
#include "collectives/ledger.hpp"
#include "collectives/route_plan.hpp"
#include "collectives/store_choice.hpp"
#include "m2n/channel.hpp"
#include "transport/row_kernels.hpp"

namespace m2n::collectives {

class AttentionEnd final : public ChannelEnd {
 public:
  AttentionEnd(ChannelContext& context, Worker& worker, std::uint32_t attention_rank);
  ~AttentionEnd();

  // The number of the operation, or why there is none.
  Result<std::uint64_t> dispatch(const Dispatch& arguments);
  Status try_combine(std::uint64_t operation, const MutableRows& out, const ConstRows& add);
  Status combine(std::uint64_t operation, const MutableRows& out, const ConstRows& add,
                 Timeout timeout);
  Result<bool> issued(std::uint64_t operation);
  Result<bool> input_free(std::uint64_t operation);
  // Also what a dropped ticket does.
  void abandon(std::uint64_t operation) noexcept;
  // Frees the slots of abandoned operations whose replies are in.
  void reap();
  bool idle() const noexcept;
  bool has_open() const noexcept;  // operations whose tickets are held
  // The largest `pieces` of all attention ranks, or `again`.
  Status try_agree(std::uint64_t pieces, std::uint64_t& agreed);
  Status timed_out_agree() const {
    return timed_out("agree_pieces", statistics_.operations, "expert");
  }
  Result<ArenaBlock> arena_acquire(std::uint32_t tokens);
  // A block that will not be dispatched after all.
  Status arena_release(const ArenaBlock& block);
  // Where peers can read it.
  bool wants_arena() const noexcept;
  // Registers the arena and gives what peers import.
  Result<transport::Blob> make_arena();
  void seal_arena() noexcept;
  Status timed_out_combine(std::uint64_t operation) const {
    return timed_out("combine", operation, "expert");
  }
  Statistics statistics() const;

 private:
  enum class OperationState : std::uint8_t { free, open, abandoned };
  struct Peer {  // one expert rank's share of an operation
    std::uint64_t round = 0;
    std::uint32_t lines = 0;          // of its reply that may be read
    const std::byte* rows = nullptr;  // once its header may be read
    bool touched = false;
    bool failed = false;  // its reply is not ok
    ReplyStatus why = ReplyStatus::ok;
  };
  struct Operation {
    explicit Operation(const RouteShape& shape) : plan{shape}, peers(shape.local_rank.size()) {}
    RoutePlan plan;
    std::vector<Peer> peers;
    std::uint64_t number = 0;
    OperationState state = OperationState::free;
    std::uint32_t layer = 0;
    std::uint32_t micro_batch = 0;
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    std::uint32_t next = 0;         // token that combine takes next
    std::uint32_t next_column = 0;  // of that token
    MutableRows out;                // what the sums so far were written to, and added
    ConstRows add;
    bool in_place = false;  // these overlap
    bool any_failed = false;
    bool streaming = false;                 // too large for the caches
    std::uint32_t block = ArenaRing::none;  // of the arena
    std::uint32_t arena_row = 0;            // its row of token 0
  };

  struct Sending {  // one round on its way to one expert rank
    PairLink* link = nullptr;
    std::uint64_t round = 0;
    SlotHeader header;
    std::span<const RowInfo> rows;
    std::byte* to = nullptr;  // its rows
    bool streaming = false;
  };

  Status check_arguments(const Dispatch& arguments) const;
  Status check_routing(const Dispatch& arguments) const;
  Operation* find(std::uint64_t number) noexcept;
  Operation* free_operation() noexcept;
  Result<Operation*> open_operation(const Dispatch& arguments);
  Status check_credits(const Operation& operation);
  void send_all(Operation& operation, const Dispatch& arguments);
  void send(Operation& operation, std::uint32_t peer, const Dispatch& arguments);
  void on_message(std::uint32_t peer, const ControlMessage& message) override;
  bool lies_as_in_arena(const Dispatch& arguments) const noexcept;
  Status place_in_arena(Operation& operation, const Dispatch& arguments);
  Status copy_to_arena(Operation& operation, const Dispatch& arguments);
  void write_index(std::byte* to, const Operation& operation, std::span<const RowInfo> rows) const;
  bool rows_read(const Operation& operation) const;
  void free_block(Operation& operation) noexcept;
  void push_rows(std::uint32_t peer, Sending& sending, const Dispatch& arguments);
  std::uint64_t time_row(const Sending& sending, std::size_t row, const Dispatch& arguments) const;
  void copy_rows(std::byte* to, std::span<const RowInfo> rows, const Dispatch& arguments,
                 bool streaming = false) const;
  void count(const Operation& operation);

  Status check_combine(const Operation& operation, const MutableRows& out,
                       const ConstRows& add) const;
  Status advance(Operation& operation, const MutableRows& out, const ConstRows& add);
  Status sum_tokens(Operation& operation, const MutableRows& out, const ConstRows& add);
  std::uint32_t gather(Operation& operation, std::uint32_t token, std::uint32_t& count);
  void look(Operation& operation, std::uint32_t rank);
  Status replies_complete(Operation& operation);
  bool given_up(Operation& operation);
  void aim(Operation& operation, const MutableRows& out, const ConstRows& add) const noexcept;
  Status unavailable(const Operation& operation) const;
  void release(Operation& operation);

  std::uint32_t attention_rank_;
  bool asked_ = false;  // agree_pieces
  bool answered_ = false;
  std::uint64_t asked_pieces_ = 0;
  std::uint64_t answer_ = 0;
  ArenaMemory arena_;
  std::vector<Operation> operations_;
  std::vector<Ledger> ledgers_;             // per pair
  std::vector<StoreChoice> store_choices_;  // per pair
  ExchangeChoice exchange_choice_;
  std::uint64_t next_operation_ = 0;
  transport::SumFunction sum_;
  std::vector<const void*> row_pointers_;  // of the token that is being summed
  std::vector<float> row_weights_;
  std::vector<std::uint64_t> expert_rows_;
};

}  // namespace m2n::collectives
