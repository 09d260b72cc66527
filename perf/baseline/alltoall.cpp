// Dispatch and combine by collectives.
#include <mpi.h>

#include <algorithm>

#include "perf/baseline/rounds.hpp"
#include "perf/baseline/rows.hpp"

namespace m2n::perf::mpi {
namespace {

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

}  // namespace

BaselineRounds* make_all_to_all(const BaselineShape& shape) {
  return new AllToAll{shape};
}

}  // namespace m2n::perf::mpi
