// Dispatch and combine as a good MPI programmer writes them, in two ways; the faster one counts.
// all-to-all: counts by MPI_Alltoall, one packed MPI_Alltoallv there, one back (counts are known).
// messages: no count exchange at all: receives of the largest size are posted ahead, a message
// tells its own size; no packing where x itself is the message; replies in pieces, so that the
// attention rank adds while the expert rank still works; only pairs that have rows.
#include <mpi.h>

#include <algorithm>

#include "perf/baseline/rows.hpp"

#define M2N_TEXT_(x) #x
#define M2N_TEXT(x) M2N_TEXT_(x)

namespace m2n::perf::mpi {
namespace {

int to_int(std::size_t bytes) {
  return static_cast<int>(bytes);
}

class AllToAll final : public BaselineRounds {
 public:
  explicit AllToAll(const BaselineShape& shape)
      : shape_{shape},
        ranks_{shape.attention_ranks + shape.expert_ranks},
        router_{shape},
        reducer_{shape},
        counts_out_(2 * ranks_),
        counts_in_(2 * ranks_),
        send_counts_(ranks_),
        send_places_(ranks_),
        receive_counts_(ranks_),
        receive_places_(ranks_),
        there_{room()},
        back_{room()},
        views_(shape.attention_ranks),
        replies_(shape.expert_ranks) {}

  void attention(const std::byte* x, const std::int32_t* ids, const float* weights, std::byte* out,
                 Record& record) override;
  void expert(const Inspector* inspector, Record& record) override;

 private:
  std::size_t room() const {
    const std::size_t entries = std::size_t{shape_.tokens} * shape_.top_k;
    const std::size_t one = info_bytes(shape_.tokens, static_cast<std::uint32_t>(entries)) +
                            shape_.tokens * std::max(shape_.row_bytes, shape_.wire_row_bytes);
    return std::max(shape_.attention_ranks, shape_.expert_ranks) * (one + 64);
  }
  void clear() {
    for (auto* list : {&send_counts_, &send_places_, &receive_counts_, &receive_places_}) {
      std::fill(list->begin(), list->end(), 0);
    }
  }
  void exchange_counts() {
    MPI_Alltoall(counts_out_.data(), 2, MPI_UINT32_T, counts_in_.data(), 2, MPI_UINT32_T,
                 MPI_COMM_WORLD);
  }
  void exchange(const std::byte* from, std::byte* to) {
    MPI_Alltoallv(from, send_counts_.data(), send_places_.data(), MPI_BYTE, to,
                  receive_counts_.data(), receive_places_.data(), MPI_BYTE, MPI_COMM_WORLD);
  }

  const BaselineShape shape_;
  std::uint32_t ranks_;
  Router router_;
  Reducer reducer_;
  std::vector<std::uint32_t> counts_out_, counts_in_;
  std::vector<int> send_counts_, send_places_, receive_counts_, receive_places_;
  Room there_, back_;
  std::vector<View> views_;
  std::vector<const std::byte*> replies_;
};

void AllToAll::attention(const std::byte* x, const std::int32_t* ids, const float* weights,
                         std::byte* out, Record& record) {
  record.start = now_ns();
  router_.plan(ids, weights);
  clear();
  const std::uint32_t m = shape_.attention_ranks;
  for (std::uint32_t e = 0; e < shape_.expert_ranks; ++e) {
    counts_out_[2 * (m + e)] = router_.lane(e).header.rows;
    counts_out_[2 * (m + e) + 1] = router_.lane(e).header.entries;
  }
  exchange_counts();
  std::size_t place = 0;
  for (std::uint32_t e = 0; e < shape_.expert_ranks; ++e) {
    std::byte* const to = there_.data() + place;
    const std::size_t info = router_.write_info(e, to, false);
    router_.pack_rows(e, to + info, x);
    const std::size_t bytes = info + router_.lane(e).header.rows * shape_.row_bytes;
    send_places_[m + e] = to_int(place);
    send_counts_[m + e] = to_int(bytes);
    place += (bytes + 63) & ~std::size_t{63};
  }
  exchange(there_.data(), back_.data());
  clear();
  place = 0;
  for (std::uint32_t e = 0; e < shape_.expert_ranks; ++e) {
    const std::size_t bytes = router_.lane(e).header.rows * shape_.wire_row_bytes;
    replies_[e] = back_.data() + place;
    receive_places_[m + e] = to_int(place);
    receive_counts_[m + e] = to_int(bytes);
    place += (bytes + 63) & ~std::size_t{63};
  }
  exchange(there_.data(), back_.data());
  for (std::uint32_t t = 0; t < shape_.tokens; ++t) {
    add_partials(shape_, router_, t, replies_, out);
  }
  if (beyond_caches(shape_)) shape_.kernels->fence();
  record.end = now_ns();
}

void AllToAll::expert(const Inspector* inspector, Record& record) {
  exchange_counts();
  clear();
  std::size_t place = 0;
  for (std::uint32_t a = 0; a < shape_.attention_ranks; ++a) {
    const std::uint32_t rows = counts_in_[2 * a];
    const std::size_t bytes = info_bytes(rows, counts_in_[2 * a + 1]) + rows * shape_.row_bytes;
    receive_places_[a] = to_int(place);
    receive_counts_[a] = to_int(bytes);
    place += (bytes + 63) & ~std::size_t{63};
  }
  exchange(back_.data(), there_.data());
  for (std::uint32_t a = 0; a < shape_.attention_ranks; ++a) {
    views_[a] = view_of(there_.data() + receive_places_[a]);
  }
  reducer_.group(views_);
  record.readable = now_ns();
  if (inspector != nullptr) reducer_.inspect(views_, *inspector);
  record.reply = now_ns();
  clear();
  place = 0;
  for (std::uint32_t a = 0; a < shape_.attention_ranks; ++a) {
    const std::uint32_t rows = views_[a].header->rows;
    for (std::uint32_t r = 0; r < rows; ++r) {
      reducer_.reduce(a, views_[a], r, back_.data() + place + r * shape_.wire_row_bytes);
    }
    send_places_[a] = to_int(place);
    send_counts_[a] = to_int(rows * shape_.wire_row_bytes);
    place += (rows * shape_.wire_row_bytes + 63) & ~std::size_t{63};
  }
  exchange(back_.data(), there_.data());
  record.end = now_ns();
}

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
  static constexpr std::size_t direct_bytes = 32 << 10;

  std::uint32_t pieces(std::uint32_t rows) const { return (rows + piece_rows_ - 1) / piece_rows_; }
  void post_replies();
  void send_rows(std::uint32_t expert_rank, const std::byte* x);
  void take_message(std::uint32_t attention_rank);
  void send_replies(std::uint32_t attention_rank);

  const BaselineShape shape_;
  MPI_Comm comm_ = MPI_COMM_NULL;  // its own: receives are posted ahead while others are used
  std::uint32_t piece_rows_;
  std::size_t one_;  // room for one pair's message
  Router router_;
  Reducer reducer_;
  Room there_, direct_, back_;
  std::vector<MPI_Request> ahead_;  // expert rank: receives posted ahead, 2 per source
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
      there_{one_ * std::max(shape.attention_ranks, shape.expert_ranks)},
      direct_{shape.rank < shape.attention_ranks
                  ? 0
                  : shape.attention_ranks * shape.tokens * shape.row_bytes},
      back_{one_ * std::max(shape.attention_ranks, shape.expert_ranks)},
      arrivals_(shape.expert_ranks),
      arrived_(shape.expert_ranks),
      views_(shape.attention_ranks),
      replies_(shape.expert_ranks) {
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  if (shape_.rank < shape_.attention_ranks) return;
  ahead_.resize(2 * shape_.attention_ranks);
  const std::size_t rows_bytes = shape_.tokens * shape_.row_bytes;
  for (std::uint32_t a = 0; a < shape_.attention_ranks; ++a) {
    MPI_Recv_init(there_.data() + a * one_, to_int(one_), MPI_BYTE, static_cast<int>(a),
                  message_tag, comm_, &ahead_[2 * a]);
    MPI_Recv_init(direct_.data() + a * rows_bytes, to_int(rows_bytes), MPI_BYTE,
                  static_cast<int>(a), rows_tag, comm_, &ahead_[2 * a + 1]);
  }
  MPI_Startall(to_int(ahead_.size()), ahead_.data());
}

Messages::~Messages() {
  for (MPI_Request& request : ahead_) {
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
  }
  MPI_Comm_free(&comm_);
}

void Messages::post_replies() {
  for (std::uint32_t e = 0; e < shape_.expert_ranks; ++e) {
    const std::uint32_t rows = router_.lane(e).header.rows;
    replies_[e] = back_.data() + e * one_;
    arrived_[e] = 0;
    arrivals_[e].resize(pieces(rows));
    for (std::uint32_t p = 0; p < arrivals_[e].size(); ++p) {
      const std::uint32_t first = p * piece_rows_;
      const std::uint32_t count = std::min(piece_rows_, rows - first);
      MPI_Irecv(back_.data() + e * one_ + first * shape_.wire_row_bytes,
                to_int(count * shape_.wire_row_bytes), MPI_BYTE,
                static_cast<int>(shape_.attention_ranks + e), reply_tag, comm_, &arrivals_[e][p]);
    }
  }
}

void Messages::send_rows(std::uint32_t expert_rank, const std::byte* x) {
  std::byte* const to = there_.data() + expert_rank * one_;
  const int peer = static_cast<int>(shape_.attention_ranks + expert_rank);
  const std::size_t bytes = router_.lane(expert_rank).header.rows * shape_.row_bytes;
  const bool direct = router_.whole(expert_rank) && bytes >= direct_bytes;
  const std::size_t info = router_.write_info(expert_rank, to, direct);
  if (direct) {
    MPI_Isend(x, to_int(bytes), MPI_BYTE, peer, rows_tag, comm_, &sends_.emplace_back());
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
  for (std::uint32_t i = 0; i < shape_.expert_ranks; ++i) {
    send_rows((shape_.rank + i) % shape_.expert_ranks, x);
  }
  post_replies();
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
  view = view_of(there_.data() + attention_rank * one_);
  if (view.header->rows_follow == 0) return;
  MPI_Wait(&ahead_[2 * attention_rank + 1], MPI_STATUS_IGNORE);
  view.rows = direct_.data() + attention_rank * shape_.tokens * shape_.row_bytes;
}

void Messages::send_replies(std::uint32_t attention_rank) {
  const View& view = views_[attention_rank];
  std::byte* const to = back_.data() + attention_rank * one_;
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
  for (std::uint32_t a = 0; a < shape_.attention_ranks; ++a) send_replies(a);
  for (std::uint32_t a = 0; a < shape_.attention_ranks; ++a) {
    const bool direct = views_[a].header->rows_follow != 0;
    MPI_Start(&ahead_[2 * a]);
    if (direct) MPI_Start(&ahead_[2 * a + 1]);
  }
  MPI_Waitall(to_int(sends_.size()), sends_.data(), MPI_STATUSES_IGNORE);
  record.end = now_ns();
}

const char* variant_name(std::uint32_t variant) {
  static constexpr const char* names[] = {"alltoallv", "messages", "messages in pieces"};
  return names[variant];
}

bool start(std::uint32_t rank, std::uint32_t ranks) {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    return false;
  }
  int my_rank = -1;
  int all = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &all);
  return my_rank == static_cast<int>(rank) && all == static_cast<int>(ranks);
}

void finish() {
  MPI_Finalize();
}

BaselineRounds* make(const BaselineShape& shape, std::uint32_t variant) {
  if (variant == 0) return new AllToAll{shape};
  return new Messages{shape, variant == 1 ? std::size_t{1} << 31 : std::size_t{64} << 10};
}

const char* library_text() {
#if defined(OPEN_MPI)
  return "Open MPI " M2N_TEXT(OMPI_MAJOR_VERSION) "." M2N_TEXT(OMPI_MINOR_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return "MPI";
#endif
}

}  // namespace
}  // namespace m2n::perf::mpi

extern "C" __attribute__((visibility("default"))) const m2n::perf::BaselineModule*
m2n_perf_baseline() {
  using namespace m2n::perf;
  static const BaselineModule module{mpi::library_text(), 3,           mpi::variant_name,
                                     mpi::start,          mpi::finish, mpi::make};
  return &module;
}
