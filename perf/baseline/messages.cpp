// Dispatch and combine by messages, without an exchange of counts. The experts' receives are posted
// ahead with the largest size, a message tells its own; where (almost) all tokens go to a rank, x
// itself is the message, not packed; the receives of the replies are posted before anything is
// sent; replies may come in pieces, so that the attention rank adds while the expert rank still
// works; only pairs that have rows exchange any.
#include <mpi.h>

#include <algorithm>

#include "perf/baseline/rounds.hpp"
#include "perf/baseline/rows.hpp"

namespace m2n::perf::mpi {
namespace {

enum Tag : int { message_tag = 1, rows_tag = 2, reply_tag = 3 };

class Messages final : public BaselineRounds {
 public:
  Messages(const BaselineShape& shape, std::size_t piece_bytes);
  ~Messages() override;
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  void attention(const std::byte* x, const std::int32_t* ids, const float* weights, std::byte* out,
                 Record& record) override;
  void expert(const Inspector* inspector, Record& record) override;

 private:
  // From here on the handshake of a second message costs less than a copy.
  static constexpr std::size_t whole_bytes = 32 << 10;

  std::uint32_t pieces(std::uint32_t rows) const { return (rows + piece_rows_ - 1) / piece_rows_; }
  void post_messages();
  void post_replies(std::uint32_t expert_rank);
  void send_rows(std::uint32_t expert_rank, const std::byte* x);
  void take_message(std::uint32_t attention_rank);
  void send_replies(std::uint32_t attention_rank);

  const BaselineShape shape_;
  MPI_Comm comm_ = MPI_COMM_NULL;  // its own: receives are posted ahead while others are used
  std::uint32_t piece_rows_;
  std::size_t one_;  // room for one pair's message
  Router router_;
  Reducer reducer_;
  // The same memory in every round: to let it rotate, as the library does, makes MPI slower. Each
  // side copies from and to lines that its own core had last.
  Room out_, in_;
  Room whole_;                      // expert rank: x of each source
  std::vector<MPI_Request> ahead_;  // expert rank: message and x of each source
  std::vector<MPI_Request> sends_;
  std::vector<std::vector<MPI_Request>> arrivals_;  // attention rank: per expert rank and piece
  std::vector<std::uint32_t> arrived_;              // rows of each expert rank that are here
  std::vector<View> views_;
  std::vector<const std::byte*> replies_;
};

Messages::Messages(const BaselineShape& shape, std::size_t piece_bytes)
    : shape_{shape},
      piece_rows_{
          static_cast<std::uint32_t>(std::max<std::size_t>(1, piece_bytes / shape.wire_row_bytes))},
      one_{(info_bytes(shape.tokens, shape.tokens * shape.top_k) +
            shape.tokens * std::max(shape.row_bytes, shape.wire_row_bytes) + 63) &
           ~std::size_t{63}},
      router_{shape},
      reducer_{shape},
      out_{one_ * std::max(shape.attention_ranks, shape.expert_ranks)},
      in_{one_ * std::max(shape.attention_ranks, shape.expert_ranks)},
      whole_{shape.is_attention() ? 0 : shape.attention_ranks * shape.tokens * shape.row_bytes},
      arrivals_(shape.expert_ranks),
      arrived_(shape.expert_ranks),
      views_(shape.attention_ranks),
      replies_(shape.expert_ranks) {
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  if (shape_.is_attention()) return;
  ahead_.assign(2 * shape_.attention_ranks, MPI_REQUEST_NULL);
  post_messages();
}

Messages::~Messages() {
  for (MPI_Request& request : ahead_) {
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&comm_);
}

// Those of the last round that were not needed, for x, stay posted.
void Messages::post_messages() {
  const std::size_t x_bytes = shape_.tokens * shape_.row_bytes;
  for (std::uint32_t a = 0; a < shape_.attention_ranks; ++a) {
    const int peer = static_cast<int>(a);
    MPI_Irecv(in_.data() + a * one_, to_int(one_), MPI_BYTE, peer, message_tag, comm_,
              &ahead_[2 * a]);
    MPI_Request& whole = ahead_[2 * a + 1];
    if (whole != MPI_REQUEST_NULL) continue;
    MPI_Irecv(whole_.data() + a * x_bytes, to_int(x_bytes), MPI_BYTE, peer, rows_tag, comm_,
              &whole);
  }
}

void Messages::post_replies(std::uint32_t expert_rank) {
  const std::uint32_t rows = router_.lane(expert_rank).header.rows;
  std::byte* const to = in_.data() + expert_rank * one_;
  replies_[expert_rank] = to;
  arrived_[expert_rank] = 0;
  arrivals_[expert_rank].resize(pieces(rows));
  for (std::uint32_t p = 0; p < arrivals_[expert_rank].size(); ++p) {
    const std::uint32_t first = p * piece_rows_;
    const std::uint32_t count = std::min(piece_rows_, rows - first);
    MPI_Irecv(to + first * shape_.wire_row_bytes, to_int(count * shape_.wire_row_bytes), MPI_BYTE,
              static_cast<int>(shape_.attention_ranks + expert_rank), reply_tag, comm_,
              &arrivals_[expert_rank][p]);
  }
}

void Messages::send_rows(std::uint32_t expert_rank, const std::byte* x) {
  std::byte* const to = out_.data() + expert_rank * one_;
  const int peer = static_cast<int>(shape_.attention_ranks + expert_rank);
  const std::size_t bytes = router_.lane(expert_rank).header.rows * shape_.row_bytes;
  const bool whole = router_.nearly_whole(expert_rank) && bytes >= whole_bytes;
  const std::size_t info = router_.write_info(expert_rank, to, whole);
  if (whole) {
    MPI_Isend(x, to_int(shape_.tokens * shape_.row_bytes), MPI_BYTE, peer, rows_tag, comm_,
              &sends_.emplace_back());
    MPI_Isend(to, to_int(info), MPI_BYTE, peer, message_tag, comm_, &sends_.emplace_back());
    return;
  }
  router_.pack_rows(expert_rank, to + info, x);
  MPI_Isend(to, to_int(info + bytes), MPI_BYTE, peer, message_tag, comm_, &sends_.emplace_back());
}

void Messages::attention(const std::byte* x, const std::int32_t* ids, const float* weights,
                         std::byte* out, Record& record) {
  record.start = now_ns();
  router_.plan(ids, weights);
  sends_.clear();
  sends_.reserve(2 * shape_.expert_ranks);
  for (std::uint32_t e = 0; e < shape_.expert_ranks; ++e) post_replies(e);
  for (std::uint32_t i = 0; i < shape_.expert_ranks; ++i) {
    send_rows((shape_.rank + i) % shape_.expert_ranks, x);
  }
  for (std::uint32_t t = 0; t < shape_.tokens; ++t) {
    for (std::uint32_t e = 0; e < shape_.expert_ranks; ++e) {
      const std::int32_t row = router_.row(t, e);
      while (row >= 0 && static_cast<std::uint32_t>(row) >= arrived_[e]) {
        MPI_Wait(&arrivals_[e][arrived_[e] / piece_rows_], MPI_STATUS_IGNORE);
        arrived_[e] = std::min(arrived_[e] + piece_rows_, router_.lane(e).header.rows);
      }
    }
    add_partials(shape_, router_, t, replies_, out);
  }
  if (beyond_caches(shape_)) shape_.kernels->fence();
  MPI_Waitall(to_int(sends_.size()), sends_.data(), MPI_STATUSES_IGNORE);
  record.end = now_ns();
}

void Messages::take_message(std::uint32_t attention_rank) {
  MPI_Wait(&ahead_[2 * attention_rank], MPI_STATUS_IGNORE);
  View& view = views_[attention_rank];
  view = view_of(in_.data() + attention_rank * one_);
  if (view.header->whole_x == 0) return;
  MPI_Wait(&ahead_[2 * attention_rank + 1], MPI_STATUS_IGNORE);
  view.rows = whole_.data() + attention_rank * shape_.tokens * shape_.row_bytes;
}

void Messages::send_replies(std::uint32_t attention_rank) {
  const View& view = views_[attention_rank];
  std::byte* const to = out_.data() + attention_rank * one_;
  for (std::uint32_t first = 0; first < view.header->rows; first += piece_rows_) {
    const std::uint32_t count = std::min(piece_rows_, view.header->rows - first);
    for (std::uint32_t r = first; r < first + count; ++r) {
      reducer_.reduce(attention_rank, view, r, to + r * shape_.wire_row_bytes);
    }
    MPI_Isend(to + first * shape_.wire_row_bytes, to_int(count * shape_.wire_row_bytes), MPI_BYTE,
              static_cast<int>(attention_rank), reply_tag, comm_, &sends_.emplace_back());
  }
}

void Messages::expert(const Inspector* inspector, Record& record) {
  std::size_t most = 0;
  for (std::uint32_t a = 0; a < shape_.attention_ranks; ++a) {
    take_message(a);
    most += pieces(views_[a].header->rows);
  }
  reducer_.group(views_);
  record.readable = now_ns();
  if (inspector != nullptr) reducer_.inspect(views_, *inspector);
  record.reply = now_ns();
  sends_.clear();
  sends_.reserve(most);
  // Not every expert rank begins with the same attention rank.
  const std::uint32_t own = shape_.rank - shape_.attention_ranks;
  for (std::uint32_t i = 0; i < shape_.attention_ranks; ++i) {
    send_replies((own + i) % shape_.attention_ranks);
  }
  post_messages();
  MPI_Waitall(to_int(sends_.size()), sends_.data(), MPI_STATUSES_IGNORE);
  record.end = now_ns();
}

}  // namespace

BaselineRounds* make_messages(const BaselineShape& shape, std::size_t piece_bytes) {
  return new Messages{shape, piece_bytes};
}

}  // namespace m2n::perf::mpi
