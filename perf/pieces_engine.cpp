// A batch larger than the channel's max_tokens, through the library as its user would write it: cut
// into pieces of one operation each, as many in flight as the channel has room for. Windows stay
// small that way, and rows meet their readers in the cache.
#include <algorithm>
#include <vector>

#include "perf/engine.hpp"
#include "perf/kernels.hpp"

namespace m2n::perf {
namespace {

class PiecesEngine final : public Engine {
 public:
  PiecesEngine(const Seat& seat, Channel channel)
      : seat_{seat},
        setup_{*seat.setup},
        channel_{std::move(channel)},
        piece_{channel_.config().max_tokens},
        pieces_{(seat.tokens + piece_ - 1) / piece_},
        x_{seat.attention() ? seat.tokens * setup_.row_bytes() : 0},
        out_{seat.attention() ? seat.tokens * setup_.wire_row_bytes() : 0},
        tickets_(channel_.config().depth) {
    index_.reserve(std::size_t{piece_} * setup_.top_k * setup_.placement.max_parts());
    policy_.early = !seat.oversubscribed && setup_.options.receive != Receive::whole;
  }
  ~PiecesEngine() override { (void)channel_.close(); }
  PiecesEngine(const PiecesEngine&) = delete;
  PiecesEngine& operator=(const PiecesEngine&) = delete;

  std::string name() const override { return "m2n"; }
  Status iterate(std::uint64_t first, bool check, std::span<Record> records) override {
    return seat_.attention() ? attention(first, check, records[0])
                             : expert(first, check, records[0]);
  }
  std::uint64_t wire_bytes() const override {
    return seat_.attention() ? channel_.attention_statistics().wire_bytes : 0;
  }
  std::uint64_t logical_bytes() const override {
    return seat_.attention() ? channel_.attention_statistics().logical_bytes : 0;
  }

 private:
  Status attention(std::uint64_t operation, bool check, Record& record);
  Status dispatch(const Choices& choices, std::uint32_t piece);
  Status expert(std::uint64_t operation, bool check, Record& record);
  Status answer(Batch& batch, bool check, const RowName& first);
  Outputs echo(const BatchSource& source);

  Seat seat_;
  const Setup& setup_;
  Channel channel_;
  std::uint32_t piece_;  // tokens
  std::uint32_t pieces_;
  Buffer x_, out_;
  std::vector<Ticket> tickets_;
  std::vector<std::uint32_t> index_;
  ReceivePolicy policy_;
};

Status PiecesEngine::dispatch(const Choices& choices, std::uint32_t piece) {
  const std::size_t first = std::size_t{piece} * piece_;
  Dispatch call;
  call.tokens = std::min(piece_, seat_.tokens - static_cast<std::uint32_t>(first));
  call.x = {x_.data() + first * setup_.row_bytes(), 0};
  call.ids = ExpertIds{choices.ids.data() + first * setup_.top_k};
  call.weights = RoutingWeights{choices.weights.data() + first * setup_.top_k};
  call.layer = choices.layer;
  call.micro_batch = piece;
  auto ticket = channel_.dispatch(call);
  if (!ticket) return ticket.status();
  tickets_[piece % tickets_.size()] = std::move(*ticket);
  return {};
}

Status PiecesEngine::attention(std::uint64_t operation, bool check, Record& record) {
  const std::uint64_t begin = now_ns();
  seat_.work->produce(x_.data(), setup_.row_bytes(), operation);
  record.produce = now_ns() - begin;
  const Choices& choices = seat_.work->choices(operation);
  record.start = now_ns();
  std::uint32_t sent = 0;
  for (std::uint32_t piece = 0; piece < pieces_; ++piece) {
    for (; sent < pieces_ && sent < piece + tickets_.size(); ++sent) {
      if (Status gone = dispatch(choices, sent); !gone) return gone;
    }
    std::byte* out = out_.data() + std::size_t{piece} * piece_ * setup_.wire_row_bytes();
    if (Status done = channel_.combine(tickets_[piece % tickets_.size()], {out, 0}); !done)
      return done;
  }
  record.end = now_ns();
  if (!check) return {};
  if (setup_.options.corrupt && seat_.rank == 0) out_.data()[0] ^= std::byte{1};
  wrong_ += seat_.work->wrong_rows(out_.data(), operation);
  return {};
}

// y = x: pair j is the row it belongs to.
Outputs PiecesEngine::echo(const BatchSource& source) {
  if (source.pairs.size() == source.rows)
    return {source.base, source.row_stride_bytes, source.index};
  index_.clear();
  for (const Pair& pair : source.pairs)
    index_.push_back(source.index != nullptr ? source.index[pair.row] : pair.row);
  return {source.base, source.row_stride_bytes, index_.data()};
}

// Source by source, each as its rows come.
Status PiecesEngine::answer(Batch& batch, bool check, const RowName& first) {
  const std::size_t sources = batch.sources().size();
  for (std::size_t i = 0; i < sources; ++i) {
    const std::size_t s = (seat_.rank + i) % sources;
    const BatchSource source = batch.sources()[s];
    const Outputs outputs = echo(source);
    std::uint32_t ready = 0;
    do {
      const std::uint32_t next = check ? source.rows : std::min(ready + 1, source.rows);
      if (Status come = channel_.await_rows(batch, s, next); !come) return come;
      ready = batch.rows_ready(s);
      for (std::uint32_t r = 0; check && r < ready; ++r) {
        const RowName name{source.attention_rank, first.token + source.row[r].token,
                           first.operation};
        if (!same_row(setup_, name, source.payload(r))) ++wrong_;
      }
      if (Status sent = channel_.reply_rows(batch, s, ready, outputs); !sent) return sent;
    } while (ready < source.rows);
  }
  return {};
}

Status PiecesEngine::expert(std::uint64_t operation, bool check, Record& record) {
  for (std::uint32_t piece = 0; piece < pieces_; ++piece) {
    auto batch = channel_.receive({}, policy_);
    if (!batch) return batch.status();
    if (piece == 0) record.reply = now_ns();
    if (Status sent = answer(*batch, check, {0, piece * piece_, operation}); !sent) return sent;
  }
  record.readable = record.end = now_ns();
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> make_pieces_engine(const Seat& seat, Group& group) {
  auto channel = group.open(seat.setup->channel(seat.tokens));
  if (!channel) return channel.status();
  return std::unique_ptr<Engine>{std::make_unique<PiecesEngine>(seat, std::move(*channel))};
}

}  // namespace m2n::perf
