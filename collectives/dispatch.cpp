// dispatch: arguments are checked, the plan is made, and only then is the first byte sent.
#include <string>

#include "collectives/attention_end.hpp"
#include "collectives/hooks.hpp"
#include "collectives/wait.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

using transport::refuse;

AttentionEnd::AttentionEnd(ChannelContext& context, Worker& worker, std::uint32_t attention_rank)
    : ChannelEnd{context, worker}, attention_rank_{attention_rank} {
  const ChannelConfig& config = context.config;
  RouteShape shape;
  shape.map = config.placement.map();
  shape.top_k = config.top_k;
  shape.max_tokens = config.max_tokens;
  shape.combine = config.combine;
  shape.weights = config.weights;
  shape.choice = config.replica_choice;
  shape.local_rank = context.group->expert_is_local;
  const std::uint32_t in_flight =
      config.presence == Presence::every ? config.depth : 2 * config.depth;
  for (std::uint32_t i = 0; i < in_flight; ++i) operations_.emplace_back(shape);
  ledgers_.assign(config.placement.expert_ranks(), Ledger{config.depth, test_first_round.load()});
  store_choices_.resize(ledgers_.size());
  sum_ = transport::row_kernels().sum(config.wire, config.output);
  row_pointers_.resize(std::size_t{config.top_k} * config.placement.max_parts());
  row_weights_.resize(row_pointers_.size());
  expert_rows_.resize(config.experts);
}

AttentionEnd::Operation* AttentionEnd::free_operation() noexcept {
  for (Operation& operation : operations_) {
    if (operation.state == OperationState::free) return &operation;
  }
  return nullptr;
}

AttentionEnd::Operation* AttentionEnd::find(std::uint64_t number) noexcept {
  for (Operation& operation : operations_) {
    if (operation.state == OperationState::open && operation.number == number) return &operation;
  }
  return nullptr;
}

Result<AttentionEnd::Operation*> AttentionEnd::open_operation(const Dispatch& arguments) {
  Operation* operation = free_operation();
  if (operation == nullptr) {
    return refuse({"dispatch", "operations in flight", std::to_string(operations_.size()),
                   "fewer than " + std::to_string(operations_.size()) + "; combine one first",
                   context_.rank(), "ChannelConfig::depth"},
                  Code::exhausted);
  }
  const ChannelConfig& config = context_.config;
  const std::uint64_t tokens = arguments.tokens;
  operation->first = static_cast<std::uint32_t>(tokens * config.shard_index / config.shard_count);
  operation->last =
      static_cast<std::uint32_t>(tokens * (config.shard_index + 1) / config.shard_count);
  const Routing routing{arguments.ids,   arguments.weights, operation->first,
                        operation->last, next_operation_,   attention_rank_};
  if (!operation->plan.make(routing)) {
    const BadId& bad = operation->plan.bad_id();
    return refuse({"dispatch",
                   "ids[token " + std::to_string(bad.token) + "][k " + std::to_string(bad.k) + "]",
                   std::to_string(bad.id), "-1..." + std::to_string(config.experts - 1),
                   context_.rank(), "ChannelConfig::experts"});
  }
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
    const bool touched = config.presence == Presence::every || operation->plan.rank(peer).rows != 0;
    operation->peers[peer] = {.touched = touched};
  }
  return operation;
}

Status AttentionEnd::check_credits(const Operation& operation) {
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
    if (!operation.peers[peer].touched) continue;
    if (Status status = check_link(*links_[peer], "dispatch"); !status) return status;
    if (peer_closed_[peer]) {
      blame(peer);
      return closed_by_peer("dispatch");
    }
    if (ledgers_[peer].has_credit() && links_[peer]->begin(ledgers_[peer].next()) != nullptr)
      continue;
    return refuse(
        {"dispatch", "operations in flight to expert rank " + std::to_string(peer),
         std::to_string(ledgers_[peer].issued() - ledgers_[peer].consumed()),
         "fewer than " + std::to_string(context_.config.depth) + "; combine the oldest first",
         context_.rank(), "ChannelConfig::depth"},
        Code::exhausted);
  }
  return {};
}

Result<std::uint64_t> AttentionEnd::dispatch(const Dispatch& arguments) {
  if (Status status = check_arguments(arguments); !status) return status;
  reap();
  Result<Operation*> opened = open_operation(arguments);
  if (!opened) return opened.status();
  Operation& operation = **opened;
  if (Status status = check_credits(operation); !status) return status;
  if (Status status = place_in_arena(operation, arguments); !status) return status;
  operation.number = next_operation_++;
  operation.state = OperationState::open;
  operation.layer = arguments.layer;
  operation.micro_batch = arguments.micro_batch;
  operation.next = operation.first;
  operation.next_column = 0;
  operation.out = {};
  operation.add = {};
  operation.in_place = false;
  operation.any_failed = false;
  operation.streaming =
      operation.plan.rows() * context_.row_format.stride_bytes >= streaming_round_bytes;
  send_all(operation, arguments);
  count(operation);
  return operation.number;
}

void AttentionEnd::send_all(Operation& operation, const Dispatch& arguments) {
  const auto peers = static_cast<std::uint32_t>(links_.size());
  const bool timed = context_.config.exchange == ExchangeKind::automatic && arena_.ring &&
                     operation.block == ArenaRing::none && peers > 1;
  const Clock::time_point begin = timed ? Clock::now() : Clock::time_point{};
  for (std::uint32_t i = 0; i < peers; ++i) {
    const std::uint32_t peer = (attention_rank_ + i) % peers;
    if (operation.peers[peer].touched) send(operation, peer, arguments);
  }
  if (!timed) return;
  const std::chrono::nanoseconds took = Clock::now() - begin;
  exchange_choice_.pushed(operation.plan.rows(), static_cast<std::uint64_t>(took.count()));
}

void AttentionEnd::count(const Operation& operation) {
  ++statistics_.operations;
  statistics_.tokens += operation.last - operation.first;
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer)
    statistics_.rows += operation.plan.rank(peer).rows;
  statistics_.logical_bytes += operation.plan.logical_rows() * context_.row_bytes;
  const std::span<const std::uint32_t> counts = operation.plan.expert_counts();
  for (std::size_t e = 0; e < counts.size(); ++e) expert_rows_[e] += counts[e];
}

Statistics AttentionEnd::statistics() const {
  Statistics statistics = statistics_;
  statistics.expert_rows = expert_rows_;
  statistics.peers = peer_statistics_;
  return statistics;
}

}  // namespace m2n::collectives
