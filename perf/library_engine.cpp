// Rounds through the library, as its user would write them. The experts reply y = x: the batch's
// own rows, named by index, nothing copied.
#include <vector>

#include "perf/engine.hpp"
#include "perf/kernels.hpp"

namespace m2n::perf {
namespace {

class LibraryEngine final : public Engine {
 public:
  LibraryEngine(const Seat& seat, Channel channel)
      : seat_{seat}, setup_{*seat.setup}, channel_{std::move(channel)}, bytes_{setup_} {}
  ~LibraryEngine() override { (void)channel_.close(); }
  LibraryEngine(const LibraryEngine&) = delete;
  LibraryEngine& operator=(const LibraryEngine&) = delete;

  void prepare();
  std::string name() const override { return "m2n"; }
  Status iterate(std::uint64_t first, bool check, std::span<Record> records) override {
    return seat_.attention() ? attention(first, check, records) : expert(first, check, records);
  }
  std::uint64_t wire_bytes() const override {
    return seat_.attention() ? channel_.attention_statistics().wire_bytes : 0;
  }
  std::uint64_t logical_bytes() const override {
    return seat_.attention() ? channel_.attention_statistics().logical_bytes : 0;
  }

 private:
  Status attention(std::uint64_t first, bool check, std::span<Record> records);
  Status expert(std::uint64_t first, bool check, std::span<Record> records);
  Status expert_early(std::span<Record> records);
  // Both sides can work at once, and y does not depend on what x says.
  bool early() const noexcept {
    const Receive receive = setup_.options.receive;
    return receive == Receive::automatic ? !seat_.oversubscribed && !setup_.byte_payload()
                                         : receive == Receive::early;
  }
  Status produce(std::uint64_t operation, std::uint32_t place, Record& record);
  void reply_rows(Batch& batch);
  void reply_grouped(Batch& batch);
  void inspect(const Batch& batch, std::uint64_t operation);

  Seat seat_;
  const Setup& setup_;
  Channel channel_;
  ByteOutputs bytes_;
  Buffer y_;  // expert rank: grouped rows of one-byte payloads
  // Attention rank: per micro-batch.
  std::vector<Buffer> x_;
  std::vector<Buffer> out_;
  std::vector<ConstRows> rows_;
  std::vector<Ticket> tickets_;
  // Expert rank: room for what reply() is given.
  std::vector<std::uint32_t> index_;
  std::vector<Outputs> outputs_;
};

void LibraryEngine::prepare() {
  const std::size_t slots = setup_.options.micro_batches;
  if (seat_.attention()) {
    const std::size_t x_bytes = seat_.tokens * setup_.row_bytes();
    for (std::size_t i = 0; i < slots; ++i) {
      x_.emplace_back(setup_.options.input == Input::own ? x_bytes : 0);
      out_.emplace_back(seat_.tokens * setup_.wire_row_bytes());
    }
    rows_.resize(slots);
    tickets_.resize(slots);
    return;
  }
  index_.reserve(std::size_t{seat_.tokens} * setup_.attention_ranks * setup_.top_k *
                 setup_.placement.max_parts());
  outputs_.reserve(setup_.attention_ranks);
}

Status LibraryEngine::produce(std::uint64_t operation, std::uint32_t place, Record& record) {
  std::byte* x = x_[place].data();
  std::size_t stride = setup_.row_bytes();
  const std::uint64_t begin = now_ns();
  if (setup_.options.input == Input::arena) {
    auto block = channel_.arena_acquire(seat_.tokens);
    if (!block) return block.status();
    x = block->base;
    stride = block->row_stride_bytes;
  }
  seat_.work->produce(x, stride, operation);
  record.produce = now_ns() - begin;
  rows_[place] = {x, stride};
  return {};
}

Status LibraryEngine::attention(std::uint64_t first, bool check, std::span<Record> records) {
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    if (Status made = produce(first + i, i, records[i]); !made) return made;
  }
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    const Choices& choices = seat_.work->choices(first + i);
    Dispatch call;
    call.tokens = seat_.tokens;
    call.x = rows_[i];
    call.ids = ExpertIds{choices.ids.data()};
    call.weights = RoutingWeights{choices.weights.data()};
    call.layer = choices.layer;
    call.micro_batch = i;
    records[i].start = now_ns();
    auto ticket = channel_.dispatch(call);
    if (!ticket) return ticket.status();
    tickets_[i] = std::move(*ticket);
  }
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    if (Status done = channel_.combine(tickets_[i], {out_[i].data(), 0}); !done) return done;
    records[i].end = now_ns();
  }
  if (!check) return {};
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    if (setup_.options.corrupt && seat_.rank == 0) out_[i].data()[0] ^= std::byte{1};
    wrong_ += seat_.work->wrong_rows(out_[i].data(), first + i);
  }
  return {};
}

void LibraryEngine::inspect(const Batch& batch, std::uint64_t operation) {
  for (const BatchSource& source : batch.sources()) {
    for (std::uint32_t r = 0; r < source.rows; ++r) {
      const RowName name{source.attention_rank, source.row[r].token, operation};
      if (!same_row(setup_, name, source.payload(r))) ++wrong_;
    }
  }
  const GroupedRows& grouped = batch.grouped();
  for (std::size_t r = 0; r < grouped.source_of.size(); ++r) {
    if (grouped.source_of[r] < 0) continue;
    const BatchSource& source = batch.sources()[static_cast<std::size_t>(grouped.source_of[r])];
    const RowName name{source.attention_rank, source.row[grouped.row_of[r]].token, operation};
    if (!same_row(setup_, name, grouped.base + r * grouped.row_stride_bytes)) ++wrong_;
  }
}

void LibraryEngine::reply_rows(Batch& batch) {
  outputs_.clear();
  index_.clear();
  for (const BatchSource& source : batch.sources()) {
    if (setup_.byte_payload()) {
      const std::size_t from = index_.size();
      for (const Pair& pair : source.pairs) {
        index_.push_back(ByteOutputs::kind(source.payload(pair.row)));
      }
      outputs_.push_back({bytes_.base(), 0, index_.data() + from});
    } else if (source.pairs.size() == source.rows) {
      // One expert per row: pair j is row j.
      outputs_.push_back({source.base, source.row_stride_bytes, source.index});
    } else {
      const std::size_t from = index_.size();
      for (const Pair& pair : source.pairs) {
        index_.push_back(source.index != nullptr ? source.index[pair.row] : pair.row);
      }
      outputs_.push_back({source.base, source.row_stride_bytes, index_.data() + from});
    }
  }
}

// y must lie as the batch does, so one-byte payloads need rows of their own.
void LibraryEngine::reply_grouped(Batch& batch) {
  const GroupedRows& grouped = batch.grouped();
  outputs_.clear();
  if (!setup_.byte_payload()) {
    outputs_.push_back({grouped.base, grouped.row_stride_bytes, nullptr});
    return;
  }
  const std::size_t row_bytes = setup_.wire_row_bytes();
  if (y_.size() < grouped.rows * row_bytes) y_ = Buffer{grouped.rows * row_bytes, false};
  for (std::size_t e = 0; e < grouped.counts.size(); ++e) {
    const std::size_t first = grouped.first_row[e];
    for (std::size_t r = first; r < first + grouped.counts[e]; ++r) {
      const auto kind = ByteOutputs::kind(grouped.base + r * grouped.row_stride_bytes);
      kernels().copy(y_.data() + r * row_bytes, bytes_.base() + kind * row_bytes, row_bytes);
    }
  }
  outputs_.push_back({y_.data(), row_bytes, nullptr});
}

// Replies to rows as they come.
Status LibraryEngine::expert_early(std::span<Record> records) {
  ReceivePolicy policy;
  policy.early = true;
  for (Record& record : records) {
    auto batch = channel_.receive({}, policy);
    if (!batch) return batch.status();
    const std::size_t sources = batch->sources().size();
    reply_rows(*batch);
    record.reply = now_ns();
    for (std::size_t i = 0; i < sources; ++i) {
      const std::size_t s = (seat_.rank + i) % sources;
      const std::uint32_t rows = batch->sources()[s].rows;
      for (std::uint32_t ready = 0; ready < rows || rows == 0;) {
        if (Status come = channel_.await_rows(*batch, s, std::min(ready + 1, rows)); !come)
          return come;
        ready = batch->rows_ready(s);
        if (i + 1 == sources && ready == rows) record.readable = now_ns();
        if (Status sent = channel_.reply_rows(*batch, s, ready, outputs_[s]); !sent) return sent;
        if (ready == rows) break;
      }
    }
    record.end = now_ns();
  }
  return {};
}

Status LibraryEngine::expert(std::uint64_t first, bool check, std::span<Record> records) {
  const bool rows = setup_.options.layout == Layout::rows;
  if (rows && !check && early()) return expert_early(records);
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    auto batch = channel_.receive();
    if (!batch) return batch.status();
    records[i].readable = now_ns();
    if (check) inspect(*batch, first + i);
    if (rows) {
      reply_rows(*batch);
    } else {
      reply_grouped(*batch);
    }
    records[i].reply = now_ns();
    Status sent = rows ? channel_.reply(*batch, outputs_) : channel_.reply(*batch, outputs_[0]);
    if (!sent) return sent;
    records[i].end = now_ns();
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> make_library_engine(const Seat& seat, Group& group) {
  if (seat.setup->piece(seat.tokens) < seat.tokens) return make_pieces_engine(seat, group);
  auto channel = group.open(seat.setup->channel(seat.tokens));
  if (!channel) return channel.status();
  auto engine = std::make_unique<LibraryEngine>(seat, std::move(*channel));
  engine->prepare();
  return std::unique_ptr<Engine>{std::move(engine)};
}

}  // namespace m2n::perf
