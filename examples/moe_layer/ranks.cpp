// How m2n is used: this is the file to read.
#include "ranks.hpp"

#include <algorithm>
#include <deque>
#include <vector>

#include "attention.hpp"
#include "expert.hpp"
#include "m2n/m2n.hpp"

namespace moe {
namespace {

// What failed: the verb's name and its Status.
struct Outcome {
  const char* step = "";
  m2n::Status status;
  explicit operator bool() const noexcept { return static_cast<bool>(status); }
};

// An attention rank's loop over layers and micro-batches. While the experts work on one
// micro-batch, attention and gate of the next one run here.
class AttentionRank {
 public:
  AttentionRank(const Options& options, Recorder recorder, std::uint32_t rank)
      : options_{options}, recorder_{recorder} {
    for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
      weights_.push_back(make_attention(options, layer));
    }
    for (std::uint32_t batch = 0; batch < options.micro_batches; ++batch) {
      hidden_.push_back(make_tokens(options, rank, batch));
    }
    routed_.resize(options.micro_batches);
  }

  Outcome run(m2n::Channel& channel) {
    channel_ = channel;
    // No more tickets than the channel has credits (its depth), and none that a micro-batch's next
    // layer would have to wait for.
    const std::size_t in_flight = std::min(options_.depth, options_.micro_batches);
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      for (std::uint32_t batch = 0; batch < options_.micro_batches; ++batch) {
        if (open_.size() == in_flight) {
          if (Outcome outcome = combine_oldest(); !outcome) return outcome;
        }
        if (Outcome outcome = dispatch(layer, batch); !outcome) return outcome;
      }
    }
    while (!open_.empty()) {
      if (Outcome outcome = combine_oldest(); !outcome) return outcome;
    }
    return {};
  }

  const std::vector<Bf16>& hidden(std::uint32_t micro_batch) const { return hidden_[micro_batch]; }

 private:
  struct Open {
    m2n::Ticket ticket;
    std::uint32_t layer = 0;
    std::uint32_t micro_batch = 0;
  };

  Outcome dispatch(std::uint32_t layer, std::uint32_t batch) {
    Routed& routed = routed_[batch];
    std::int64_t begin = now_ns();
    attend(options_, weights_[layer], hidden_[batch], routed);
    recorder_.add(Work::attention, layer, batch, begin);

    begin = now_ns();
    gate(options_, weights_[layer], routed);
    recorder_.add(Work::gate, layer, batch, begin);

    begin = now_ns();
    m2n::Dispatch arguments;
    arguments.tokens = options_.tokens;
    arguments.x.base = routed.x.data();
    arguments.ids = routed.ids.data();
    arguments.weights = routed.weights.data();
    arguments.layer = layer;
    arguments.micro_batch = batch;
    m2n::Result<m2n::Ticket> ticket = channel_.dispatch(arguments);
    recorder_.add(Work::dispatch, layer, batch, begin);
    if (!ticket) return {"dispatch", ticket.status()};
    open_.push_back({std::move(*ticket), layer, batch});
    return {};
  }

  // hidden = residual + sum of weight * y over the token's experts
  Outcome combine_oldest() {
    Open open = std::move(open_.front());
    open_.pop_front();
    const std::int64_t begin = now_ns();
    m2n::Status status =
        channel_.combine(open.ticket, m2n::MutableRows{hidden_[open.micro_batch].data()},
                         m2n::ConstRows{routed_[open.micro_batch].residual.data()});
    recorder_.add(Work::combine, open.layer, open.micro_batch, begin);
    return {"combine", std::move(status)};
  }

  const Options& options_;
  m2n::Channel channel_;
  Recorder recorder_;
  std::vector<AttentionWeights> weights_;  // per layer
  std::vector<std::vector<Bf16>> hidden_;  // per micro-batch
  std::vector<Routed> routed_;             // per micro-batch
  std::deque<Open> open_;
};

// An expert rank's loop: whatever comes, in the order in which the attention ranks sent it.
class ExpertRank {
 public:
  ExpertRank(const Options& options, Recorder recorder, std::uint32_t rank)
      : options_{options}, recorder_{recorder}, expert_{options} {
    const std::uint32_t first = rank * options.experts_per_rank();
    const std::uint32_t last = std::min(first + options.experts_per_rank(), options.experts);
    weights_.resize(options.layers);
    for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
      for (std::uint32_t e = first; e < last; ++e) {
        weights_[layer].push_back(make_expert(options, layer, e));
      }
    }
  }

  Outcome run(m2n::Channel& channel) {
    channel_ = channel;
    for (std::uint32_t operation = 0; operation < options_.operations(); ++operation) {
      std::int64_t begin = now_ns();
      m2n::Result<m2n::Batch> batch = channel_.receive();
      if (!batch) return {"receive", batch.status()};
      const std::uint32_t layer = batch->layer();
      const std::uint32_t micro_batch = batch->micro_batch();
      recorder_.add(Work::receive, layer, micro_batch, begin);

      begin = now_ns();
      compute(layer, batch->grouped());
      recorder_.add(Work::experts, layer, micro_batch, begin);

      begin = now_ns();
      const m2n::Status status = channel_.reply(*batch, m2n::Outputs{y_.data()});
      recorder_.add(Work::reply, layer, micro_batch, begin);
      if (!status) return {"reply", status};
    }
    return {};
  }

 private:
  // The batch is already sorted by expert: one call per expert, y in the same geometry.
  void compute(std::uint32_t layer, const m2n::GroupedRows& rows) {
    y_.resize(rows.rows * options_.hidden);
    for (std::size_t e = 0; e < rows.counts.size(); ++e) {
      if (rows.counts[e] == 0) continue;
      const std::byte* first = rows.base + rows.first_row[e] * rows.row_stride_bytes;
      expert_.run(weights_[layer][e], {first, rows.row_stride_bytes, rows.counts[e]},
                  y_.data() + rows.first_row[e] * options_.hidden);
    }
  }

  const Options& options_;
  m2n::Channel channel_;
  Recorder recorder_;
  Expert expert_;
  std::vector<std::vector<ExpertWeights>> weights_;  // per layer, per local expert
  std::vector<Bf16> y_;
};

m2n::GroupConfig group_config(const Options& options, std::uint32_t world_rank) {
  m2n::GroupConfig config =
      m2n::GroupConfig::split(options.attention_ranks, options.expert_ranks, world_rank);
  config.name = "moe_layer";
  config.transport = options.transport;
  return config;
}

m2n::ChannelConfig channel_config(const Options& options) {
  m2n::ChannelConfig config;
  config.experts = options.experts;
  config.top_k = options.top_k;
  config.hidden = options.hidden;
  config.max_tokens = options.tokens;
  config.depth = options.depth;
  config.combine = options.combine;
  config.layout = options.layout;
  config.packed_alignment = options.tile_rows;
  return config;
}

// Opens the channel, which waits for all ranks, runs `rank` on it, and leaves when nobody needs
// this rank any more.
template <class Rank>
Outcome run_on_channel(const Options& options, m2n::Group& group, Rank& rank,
                       m2n::Channel& channel) {
  m2n::Result<m2n::Channel> opened = group.open(channel_config(options));
  if (!opened) return {"Group::open", opened.status()};
  channel = *opened;
  if (Outcome outcome = rank.run(channel); !outcome) return outcome;
  return {"drain", channel.drain()};
}

Outcome run_attention(const Options& options, m2n::Group& group, std::uint32_t world_rank,
                      Reports& reports) {
  RankReport& report = reports.rank(world_rank);
  AttentionRank rank{options, {reports.spans(world_rank), report.span_count}, world_rank};
  m2n::Channel channel;
  if (Outcome outcome = run_on_channel(options, group, rank, channel); !outcome) return outcome;
  Bf16* out = reports.outputs(world_rank);
  for (std::uint32_t batch = 0; batch < options.micro_batches; ++batch) {
    out = std::copy(rank.hidden(batch).begin(), rank.hidden(batch).end(), out);
  }
  const m2n::Statistics statistics = channel.attention_statistics();
  report.rows = statistics.rows;
  report.wire_bytes = statistics.wire_bytes;
  report.logical_bytes = statistics.logical_bytes;
  return {};
}

Outcome run_experts(const Options& options, m2n::Group& group, std::uint32_t world_rank,
                    Reports& reports) {
  RankReport& report = reports.rank(world_rank);
  ExpertRank rank{options,
                  {reports.spans(world_rank), report.span_count},
                  world_rank - options.attention_ranks};
  m2n::Channel channel;
  return run_on_channel(options, group, rank, channel);
}

}  // namespace

void run_rank(const Options& options, std::uint32_t world_rank, std::shared_ptr<m2n::Store> store,
              Reports& reports) {
  RankReport& report = reports.rank(world_rank);
  m2n::Result<m2n::Group> group =
      m2n::Group::create(group_config(options, world_rank), std::move(store));
  if (!group) return report.fail("Group::create", group.status());
  // Weights are made before the channel opens, so that no rank's first operation waits for them.
  const Outcome outcome = world_rank < options.attention_ranks
                              ? run_attention(options, *group, world_rank, reports)
                              : run_experts(options, *group, world_rank, reports);
  if (!outcome) return report.fail(outcome.step, outcome.status);
  if (m2n::Status status = group->close(); !status) return report.fail("close", status);
  report.finished = true;
}

}  // namespace moe
