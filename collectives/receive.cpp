// receive: which rounds make a batch, and reading them with a careful eye, since a peer wrote them.
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/arena.hpp"
#include "collectives/expert_end.hpp"
#include "collectives/hooks.hpp"
#include "collectives/layout.hpp"
#include "collectives/slot_reader.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

ExpertEnd::ExpertEnd(ChannelContext& context, Worker& worker, std::uint32_t expert_rank)
    : ChannelEnd{context, worker},
      expert_rank_{expert_rank},
      local_experts_{context.config.placement.local_experts(expert_rank)},
      sum_{transport::row_kernels().sum(context.config.wire, context.config.wire)} {
  const ChannelConfig& config = context.config;
  const std::uint32_t sources = context.group->config.attention_ranks;
  const std::size_t per_row = std::size_t{config.top_k} * config.placement.max_parts();
  next_round_.assign(sources, test_first_round.load());
  asked_.assign(sources, false);
  chosen_.reserve(sources);
  seen_.assign(sources, false);
  since_.resize(sources);
  answers_.reserve(sources);
  row_pointers_.resize(per_row);
  row_weights_.resize(per_row);
  row_pairs_.resize(per_row);
  expert_rows_.resize(local_experts_);
  const std::size_t batches =
      config.presence == Presence::every ? config.depth : std::size_t{config.depth} * sources;
  batches_.resize(batches);
  if (config.layout != Layout::rows) {
    // Checked when the channel's sizes were; address space only, pages come as rows do.
    if (Result<GroupedLayout> layout = grouped_layout(config, sources, local_experts_); layout) {
      grouped_bytes_ = (layout->bytes + 4095) & ~std::size_t{4095};
      grouped_rows_ = layout->rows;
    }
  }
  const std::size_t most_pairs = config.max_tokens * std::min<std::size_t>(per_row, local_experts_);
  pairs_.resize(std::size_t{sources} * config.depth);
  held_.resize(pairs_.size());
  stamps_.resize(local_experts_);
  if (config.exchange != ExchangeKind::push) {
    index_.resize(pairs_.size());
    for (auto& index : index_) index.resize(config.max_tokens);
  }
  for (auto& pairs : pairs_) pairs.resize(most_pairs);
  if (config.layout != Layout::rows) {
    position_.resize(pairs_.size());
    for (auto& position : position_) position.resize(most_pairs);
  }
  for (BatchState& batch : batches_) {
    batch.sources.reserve(sources);
    batch.rounds.reserve(sources);
    batch.replies.reserve(sources);
    if (config.layout == Layout::rows) continue;
    batch.counts.resize(local_experts_);
    batch.first_row.resize(local_experts_);
    batch.cursor.resize(local_experts_);
    batch.source_of.resize(grouped_rows_, -1);
    batch.row_of.resize(grouped_rows_);
  }
  // Nothing throws from here on: without a destructor nobody would give this back.
  for (BatchState& batch : batches_) {
    if (grouped_bytes_ == 0) break;
    void* memory = mmap(nullptr, grouped_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) batch.memory = static_cast<std::byte*>(memory);
  }
}

ExpertEnd::~ExpertEnd() {
  for (const RemoteArena& arena : arenas_) {
    if (arena.base != nullptr) worker_.transport().drop_remote(arena.memory);
  }
  for (BatchState& batch : batches_) {
    if (batch.memory != nullptr) munmap(batch.memory, grouped_bytes_);
  }
}

BatchState* ExpertEnd::free_batch() noexcept {
  for (BatchState& batch : batches_) {
    if (!batch.in_use) return &batch;
  }
  return nullptr;
}

Status ExpertEnd::check_policy(const ReceivePolicy& policy) {
  if (policy.early && context_.config.layout != Layout::rows && !policy.as_rows) {
    return transport::refuse({"receive", "policy.early", "true on a grouped layout",
                              "false, or with as_rows", context_.rank(), "ReceivePolicy::early"});
  }
  if (policy.early == early_) return {};
  early_ = policy.early;  // what has come is another question now
  first_missing_ = 0;
  chosen_.clear();
  std::fill(seen_.begin(), seen_.end(), false);
  return {};
}

bool ExpertEnd::has_come(std::uint32_t source) const noexcept {
  const PairLink& link = *links_[source];
  const std::uint64_t round = next_round_[source];
  if (held_[place_of(source, round)]) return false;  // whatever its word says
  return early_ ? link.arrived(round).header : link.complete(round);
}

Result<BatchState*> ExpertEnd::try_receive(const ReceivePolicy& policy) {
  if (Status status = check_policy(policy); !status) return status;
  Status status =
      context_.config.presence == Presence::every ? choose_lockstep() : choose_touched(policy);
  if (!status) return status;
  return build(policy);
}

Result<BatchState*> ExpertEnd::receive(Timeout timeout, const ReceivePolicy& policy) {
  Result<BatchState*> result = try_receive(policy);
  if (result.code() != Code::again) return result;
  const GroupCore& group = *context_.group;
  const Deadline deadline{timeout, is_first() ? group.start_timeout : group.step_timeout};
  WaitPolicy wait = group.wait;
  const Status status = wait_until(
      worker_, wait, deadline,
      [&]() -> Status {
        if (context_.state.load(std::memory_order_acquire) != ChannelState::open)
          return context_.check("receive");
        result = try_receive(policy);
        // Sources that have come may not wait longer than they were promised.
        wait.sleep_limit = source_waits() ? std::min(group.wait.sleep_limit, policy.max_wait)
                                          : group.wait.sleep_limit;
        return result ? Status{} : result.status();
      },
      [&] { pump(); });
  count_wait(Clock::now() - deadline.start());
  if (status.code() == Code::timeout) return timed_out_receive();
  if (!status) return status;
  return result;
}

bool ExpertEnd::source_waits() const noexcept {
  return std::find(seen_.begin(), seen_.end(), true) != seen_.end();
}

Status ExpertEnd::choose_lockstep() {
  const auto sources = static_cast<std::uint32_t>(links_.size());
  for (; first_missing_ < sources; ++first_missing_) {
    if (has_come(first_missing_)) continue;
    blame(first_missing_);
    return peer_closed_[missing_] ? closed_by_peer("receive") : check_missing("receive");
  }
  if (chosen_.empty()) {
    for (std::uint32_t source = 0; source < sources; ++source) chosen_.push_back(source);
    at({HookPoint::flag_seen_pre_copy, context_.group->config.world_rank});
  }
  return check_same_step();
}

Status ExpertEnd::check_same_step() {
  const SlotHeader& first = links_[0]->header(next_round_[0]);
  for (const auto& link : links_) {
    const SlotHeader& header = link->header(next_round_[0]);
    if (header.layer == first.layer && header.micro_batch == first.micro_batch) continue;
    auto step = [](const SlotHeader& of, std::uint32_t rank) {
      return "layer " + std::to_string(of.layer) + ", micro-batch " +
             std::to_string(of.micro_batch) + " from world rank " + std::to_string(rank);
    };
    const std::string actual = step(header, link->peer_rank());
    const std::string allowed = step(first, links_[0]->peer_rank()) + " (all sources alike)";
    const std::uint64_t operation = next_round_[0];
    for (std::uint32_t source : chosen_) {
      BatchSource refused;
      refused.attention_rank = source;
      refuse_source(refused, operation, ReplyStatus::invalid);
      take(source);
    }
    chosen_.clear();
    first_missing_ = 0;
    return transport::refuse({"receive", "operation " + std::to_string(operation), actual, allowed,
                              context_.rank(), "Dispatch::layer and micro_batch"});
  }
  return {};
}

ExpertEnd::Arrivals ExpertEnd::look_at_sources(Clock::time_point now) {
  const auto sources = static_cast<std::uint32_t>(links_.size());
  Arrivals arrivals{.oldest = sources};
  std::uint32_t missing = sources;
  for (std::uint32_t source = 0; source < sources; ++source) {
    if (!has_come(source)) {
      const bool gone = peer_closed_[source] || !links_[source]->health();
      if (gone) ++arrivals.gone;
      if (!gone || missing == sources) missing = source;  // rather one that may still come
      continue;
    }
    if (!seen_[source]) {
      seen_[source] = true;
      since_[source] = now;
    }
    ++arrivals.waiting;
    std::uint32_t& oldest = arrivals.oldest;
    if (oldest == sources || since_[source] < since_[oldest]) oldest = source;
  }
  if (missing != sources) blame(missing);
  return arrivals;
}

Status ExpertEnd::choose_touched(const ReceivePolicy& policy) {
  const auto sources = static_cast<std::uint32_t>(links_.size());
  const Clock::time_point now = Clock::now();
  const Arrivals arrivals = look_at_sources(now);
  chosen_.clear();
  if (arrivals.waiting == 0) {
    if (arrivals.gone < sources) return Code::again;
    return peer_closed_[missing_] ? closed_by_peer("receive") : check_missing("receive");
  }
  const SlotHeader& first = links_[arrivals.oldest]->header(next_round_[arrivals.oldest]);
  for (std::uint32_t source = 0; source < sources; ++source) {
    if (!seen_[source]) continue;
    const SlotHeader& header = links_[source]->header(next_round_[source]);
    if (source == arrivals.oldest || context_.config.across_layers || header.layer == first.layer)
      chosen_.push_back(source);
  }
  // A source waits with one round at a time: once all wait, no other can join this batch.
  const bool enough =
      chosen_.size() >= policy.min_sources || arrivals.waiting + arrivals.gone == sources;
  if (!enough && now - since_[arrivals.oldest] < policy.max_wait) return Code::again;
  at({HookPoint::flag_seen_pre_copy, context_.group->config.world_rank});
  return {};
}

void ExpertEnd::take(std::uint32_t source) {
  seen_[source] = false;
  ++next_round_[source];
  ++peer_statistics_[source].rounds;
}

Result<BatchState*> ExpertEnd::build(const ReceivePolicy& policy) {
  BatchState* batch = free_batch();
  if (batch == nullptr) {
    return transport::refuse(
        {"receive", "batches held", std::to_string(batches_.size()),
         "fewer than " + std::to_string(batches_.size()) + "; reply to one first", context_.rank(),
         "ChannelConfig::depth"},
        Code::exhausted);
  }
  batch->sources.clear();
  batch->rounds.clear();
  batch->replies.clear();
  batch->answered = 0;
  batch->is_grouped = false;
  batch->grouped = {};
  if (Status status = add_sources(*batch); !status) return status;
  if (context_.config.layout != Layout::rows && !policy.as_rows) {
    if (Status grouped = group(*batch, policy); !grouped) return grouped;  // nothing is taken
  }
  for (std::uint32_t source : chosen_) {
    held_[place_of(source, next_round_[source])] = true;
    take(source);
  }
  chosen_.clear();
  first_missing_ = 0;
  ++statistics_.operations;
  batch->in_use = true;
  for (const BatchSource& source : batch->sources) count(source);
  return batch;
}

void ExpertEnd::count(const BatchSource& source) {
  statistics_.rows += source.rows;
  statistics_.logical_bytes += source.entries.size() * context_.row_bytes;
  statistics_.wire_bytes +=
      sizeof(SlotHeader) + info_bytes(source.rows, source.entries.size()) +
      (source.index != nullptr ? index_bytes(source.rows) : source.rows * source.row_stride_bytes);
  for (const Pair& pair : source.pairs) ++expert_rows_[pair.local_expert];
}

// A malformed source is answered `invalid`. On an aggregating channel it alone is taken, the others
// stay for the next receive; in lockstep its operation is over for all.
Status ExpertEnd::add_sources(BatchState& batch) {
  const bool lockstep = context_.config.presence == Presence::every;
  Status wrong;
  answers_.clear();
  for (std::uint32_t source : chosen_) {
    Status added = add_source(batch, source);
    answers_.push_back(added ? ReplyStatus::unserved : ReplyStatus::invalid);
    if (added) continue;
    if (wrong) wrong = std::move(added);
    if (lockstep) continue;
    refuse_source(batch.sources.back(), batch.rounds.back(), ReplyStatus::invalid);
    take(source);
    chosen_.clear();
    return wrong;
  }
  if (wrong) return {};
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    refuse_source(batch.sources[i], batch.rounds[i], answers_[i]);
    take(chosen_[i]);
  }
  chosen_.clear();
  first_missing_ = 0;
  ++statistics_.operations;
  return wrong;
}

Status ExpertEnd::add_source(BatchState& batch, std::uint32_t index) {
  const PairLink& link = *links_[index];
  SlotLimits limits;
  limits.placement = tag_of(context_.config.placement);
  limits.slot_bytes = link.in().slot_bytes;
  limits.max_rows = link.in().max_rows;
  limits.max_entries = link.in().max_entries;
  limits.max_row_entries = row_pairs_.size();
  limits.row_bytes = link.in().row_bytes;
  limits.local_experts = local_experts_;
  if (index < arenas_.size()) {
    limits.arena = arenas_[index].base;
    limits.arena_rows = arenas_[index].rows;
  }
  BatchSource& source = batch.sources.emplace_back();
  source.attention_rank = index;
  batch.rounds.push_back(next_round_[index]);
  batch.replies.emplace_back();
  const std::size_t place = place_of(index, next_round_[index]);
  SlotRoom room{pairs_[place], {}, stamps_, stamp_};
  if (!index_.empty()) room.index = index_[place];
  std::string wrong = read_slot(link.slot(next_round_[index]), limits, room, source);
  return wrong.empty() ? Status{} : malformed(index, std::move(wrong));
}

Status ExpertEnd::attach_arena(std::uint32_t attention_rank, std::span<const std::byte> blob) {
  transport::Transport& transport = worker_.transport();
  Result<transport::RemoteId> memory =
      transport.import_memory(links_[attention_rank]->peer(), blob);
  if (!memory) return memory.status();
  arenas_.resize(links_.size());
  const std::size_t stride = context_.row_format.stride_bytes;
  arenas_[attention_rank] = {transport.map(*memory), arena_rows(context_.config, stride), *memory};
  if (arenas_[attention_rank].base != nullptr) return {};
  return transport::refuse({"open", "exchange", "shared over " + std::string{transport.name()},
                            "push, or a transport that maps memory", context_.rank(),
                            "ChannelConfig::exchange"});
}

Status ExpertEnd::malformed(std::uint32_t source, std::string detail) const {
  const std::uint32_t world = links_[source]->peer_rank();
  return {Code::invalid, Scope::operation,
          "receive: operation " +
              std::to_string(links_[source]->header(next_round_[source]).operation) +
              " from world rank " + std::to_string(world) + " is malformed: " + std::move(detail) +
              " (rank " + std::to_string(context_.rank()) + ", channel \"" + context_.config.name +
              "\")",
          static_cast<std::int32_t>(world)};
}

Statistics ExpertEnd::statistics() const {
  Statistics statistics = statistics_;
  statistics.expert_rows = expert_rows_;
  statistics.peers = peer_statistics_;
  return statistics;
}

bool ExpertEnd::idle() const noexcept {
  return std::none_of(batches_.begin(), batches_.end(),
                      [](const BatchState& batch) { return batch.in_use; });
}

}  // namespace m2n::collectives
