// The expert side of a channel: receive what attention ranks dispatched, reply to it. Used by its
// worker's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/batch_state.hpp"
#include "collectives/channel_end.hpp"
#include "m2n/channel.hpp"
#include "transport/row_kernels.hpp"

namespace m2n::collectives {

class ExpertEnd final : public ChannelEnd {
 public:
  ExpertEnd(ChannelContext& context, Worker& worker, std::uint32_t expert_rank);
  ~ExpertEnd();

  Result<BatchState*> try_receive(const ReceivePolicy& policy);
  Result<BatchState*> receive(Timeout timeout, const ReceivePolicy& policy);
  Status timed_out_receive() const {
    return timed_out("receive", next_round_[missing_], "attention");
  }
  // For receive_any: no batch has been taken yet; who is waited for, and whether in vain.
  bool is_first() const noexcept { return statistics_.operations == 0; }
  std::string missing_source() const { return waits_for(next_round_[missing_], "attention"); }
  std::int32_t missing_peer() const noexcept {
    return static_cast<std::int32_t>(links_[missing_]->peer_rank());
  }
  bool may_come() const noexcept { return !peer_closed_[missing_] && links_[missing_]->health(); }
  // One Outputs per source.
  Status reply(BatchState& batch, std::span<const Outputs> per_source);
  Status reply_grouped(BatchState& batch, const Outputs& outputs);
  // Of one source, its rows below `rows`. A batch that is not in use any more is used up.
  Status reply_rows(BatchState& batch, std::size_t source, std::uint32_t rows,
                    const Outputs& outputs);
  Status await_rows(const BatchState& batch, std::size_t source, std::uint32_t rows,
                    Timeout timeout);
  std::uint32_t rows_ready(const BatchState& batch, std::size_t source) const noexcept;
  // What a dropped batch does: every source hears `unserved`.
  void abandon(BatchState& batch) noexcept;
  bool idle() const noexcept;
  // Touched: a source has come and is not in a batch yet.
  bool source_waits() const noexcept;
  // exchange = shared: maps the arena of an attention rank.
  Status attach_arena(std::uint32_t attention_rank, std::span<const std::byte> blob);
  Statistics statistics() const;

 private:
  void on_message(std::uint32_t peer, const ControlMessage& message) override;

  // Choosing what goes into a batch.
  Status check_policy(const ReceivePolicy& policy);
  bool has_come(std::uint32_t source) const noexcept;
  void end_source(BatchState& batch, std::size_t source) noexcept;
  Status choose_lockstep();
  Status choose_touched(const ReceivePolicy& policy);
  struct Arrivals {
    std::uint32_t oldest = 0;   // of the waiting sources
    std::uint32_t waiting = 0;  // sources whose next round has come
    std::uint32_t gone = 0;     // sources that send nothing any more
  };
  Arrivals look_at_sources(std::chrono::steady_clock::time_point now);
  Status check_same_step();
  void take(std::uint32_t source);
  std::size_t place_of(std::uint32_t source, std::uint64_t round) const noexcept {
    return source * std::size_t{context_.config.depth} + round % context_.config.depth;
  }
  BatchState* free_batch() noexcept;

  // Reading it.
  Result<BatchState*> build(const ReceivePolicy& policy);
  Status add_sources(BatchState& batch);
  Status add_source(BatchState& batch, std::uint32_t source);
  void count(const BatchSource& source);
  Status malformed(std::uint32_t source, std::string detail) const;
  Status group(BatchState& batch, const ReceivePolicy& policy);
  Status place_groups(BatchState& batch);
  void copy_groups(BatchState& batch);
  void clear_groups(BatchState& batch) noexcept;

  // Answering it.
  struct ReplyRows {  // the y rows of one source
    const BatchSource* source = nullptr;
    const std::byte* base = nullptr;
    std::size_t stride_bytes = 0;
    const std::uint32_t* index = nullptr;  // pair -> row, null = identity
  };
  Status check_outputs(const Outputs& outputs, std::size_t source) const;
  Status check_source(const BatchState& batch, std::size_t source, std::string_view function) const;
  Status check_ready(const BatchState& batch, std::size_t source, std::uint32_t rows,
                     std::string_view function) const;
  ReplyRows rows_of(const BatchSource& source, const Outputs& outputs) const noexcept;
  Status reply_source(BatchState& batch, std::size_t source, const ReplyRows& rows,
                      std::uint32_t until);
  std::size_t piece_columns(const ReplySlot& slot, std::size_t column) const noexcept;
  std::uint32_t collect_row(const ReplyRows& rows, std::uint32_t row, std::uint32_t& pair);
  void write_reduced(const ReplyRows& rows, ReplySlot& slot, std::uint32_t until);
  void write_per_expert(const ReplyRows& rows, ReplySlot& slot, std::uint32_t until);
  Status begin_reply(const BatchSource& source, ReplySlot& slot, ReplyStatus status);
  Status wait_for_slot(ReplySlot& slot, std::byte*& base);
  void tell(ReplySlot& slot, std::size_t lines);
  void finish_reply(ReplySlot& slot);
  void refuse_source(const BatchSource& source, std::uint64_t round, ReplyStatus status);
  void release(BatchState& batch) noexcept;

  struct RemoteArena {
    const std::byte* base = nullptr;
    std::size_t rows = 0;
    transport::RemoteId memory{};
  };

  std::uint32_t expert_rank_;
  std::vector<RemoteArena> arenas_;  // by attention rank; empty without a shared exchange
  std::uint32_t local_experts_;
  std::vector<bool> asked_;  // agree_pieces: by attention rank
  std::uint64_t most_pieces_ = 0;
  std::vector<std::uint64_t> next_round_;  // per attention rank
  std::vector<std::uint32_t> chosen_;      // sources of the batch that is being made
  std::vector<ReplyStatus> answers_;       // to them, should the operation be refused
  std::vector<bool> seen_;                 // touched: head round has been seen, and since when
  std::vector<std::chrono::steady_clock::time_point> since_;
  std::uint32_t first_missing_ = 0;  // lockstep: sources before it have come
  std::vector<BatchState> batches_;
  // By place_of(): in a batch and not answered in full; its peer has no credit for another round.
  std::vector<bool> held_;
  // Of one round each, by place_of(). A source may be ended, and its next round come, before its
  // batch is used up; nobody looks at the old ones then.
  std::vector<std::vector<Pair>> pairs_;
  std::vector<std::uint64_t> stamps_;  // per local expert, see SlotRoom
  std::uint64_t stamp_ = 0;
  std::vector<std::vector<std::uint32_t>> index_;     // arena row of each row
  std::vector<std::vector<std::uint32_t>> position_;  // grouped row of each pair
  bool early_ = false;                                // of the policy that chosen_ was chosen by
  std::size_t grouped_bytes_ = 0;                     // of one batch
  std::size_t grouped_rows_ = 0;
  transport::SumFunction sum_;
  std::vector<const void*> row_pointers_;
  std::vector<float> row_weights_;
  std::vector<std::uint32_t> row_pairs_;  // pair of each entry of the row that is being summed
  std::vector<std::uint64_t> expert_rows_;
};

}  // namespace m2n::collectives
