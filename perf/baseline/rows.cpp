// Plan, pack and sums of the MPI baseline.
#include "perf/baseline/rows.hpp"

#include <cstring>

namespace m2n::perf::mpi {

Room::Room(std::size_t bytes) : bytes_(bytes + 64) {
  const auto at = reinterpret_cast<std::uintptr_t>(bytes_.data());
  data_ = bytes_.data() + (64 - at % 64) % 64;
}

Router::Router(const BaselineShape& shape)
    : shape_{shape},
      lanes_(shape.expert_ranks),
      rows_(std::size_t{shape.tokens} * shape.expert_ranks) {
  for (Lane& lane : lanes_) {
    lane.info.resize(shape.tokens);
    lane.entries.resize(std::size_t{shape.tokens} * shape.top_k);
  }
}

void Router::plan(const std::int32_t* ids, const float* weights) {
  for (Lane& lane : lanes_) lane.header = {};
  std::memset(rows_.data(), 0xff, rows_.size() * sizeof(rows_[0]));
  for (std::uint32_t t = 0; t < shape_.tokens; ++t) {
    std::int32_t* const rows = &rows_[std::size_t{t} * shape_.expert_ranks];
    for (std::uint32_t k = 0; k < shape_.top_k; ++k) {
      const std::int32_t id = *ids++;
      const float weight = *weights++;
      if (id < 0) continue;
      const std::uint32_t home = shape_.home[id];
      Lane& lane = lanes_[home];
      if (rows[home] < 0) {
        rows[home] = static_cast<std::int32_t>(lane.header.rows);
        lane.info[lane.header.rows++] = {t, lane.header.entries};
      }
      lane.entries[lane.header.entries++] = {shape_.local[id], weight};
    }
  }
}

std::size_t Router::write_info(std::uint32_t expert_rank, std::byte* to, bool whole_x) const {
  const Lane& lane = lanes_[expert_rank];
  Header header = lane.header;
  header.whole_x = whole_x ? 1 : 0;
  std::memcpy(to, &header, sizeof header);
  std::byte* at = to + sizeof header;
  std::memcpy(at, lane.info.data(), header.rows * sizeof(RowInfo));
  at += header.rows * sizeof(RowInfo);
  std::memcpy(at, lane.entries.data(), header.entries * sizeof(Entry));
  return info_bytes(header.rows, header.entries);
}

void Router::pack_rows(std::uint32_t expert_rank, std::byte* to, const std::byte* x) const {
  const Lane& lane = lanes_[expert_rank];
  const Kernels& kernels = *shape_.kernels;
  const bool around = beyond_caches(shape_);
  const auto copy = around ? kernels.copy_streaming : kernels.copy;
  if (lane.header.rows == shape_.tokens) {
    copy(to, x, lane.header.rows * shape_.row_bytes);
  } else {
    for (std::uint32_t r = 0; r < lane.header.rows; ++r) {
      copy(to + r * shape_.row_bytes, x + lane.info[r].token * shape_.row_bytes, shape_.row_bytes);
    }
  }
  if (around) kernels.fence();
}

View view_of(const std::byte* message) noexcept {
  View view;
  view.header = reinterpret_cast<const Header*>(message);
  view.info = reinterpret_cast<const RowInfo*>(message + sizeof(Header));
  view.entries = reinterpret_cast<const Entry*>(view.info + view.header->rows);
  view.rows = message + info_bytes(view.header->rows, view.header->entries);
  return view;
}

Reducer::Reducer(const BaselineShape& shape)
    : shape_{shape},
      grouped_{shape.grouped ? std::size_t{shape.tokens} * shape.attention_ranks * shape.top_k *
                                   shape.row_bytes
                             : 0},
      places_(shape.most_local + 1),
      where_(shape.attention_ranks),
      rows_(shape.top_k),
      weights_(shape.top_k) {
  for (auto& places : where_) places.resize(std::size_t{shape.tokens} * shape.top_k);
}

void Reducer::group(const std::vector<View>& views) {
  if (!shape_.grouped) return;
  std::fill(places_.begin(), places_.end(), 0U);
  for (const View& view : views) {
    for (std::uint32_t i = 0; i < view.header->entries; ++i) {
      ++places_[view.entries[i].local_expert + 1];
    }
  }
  for (std::size_t e = 1; e < places_.size(); ++e) places_[e] += places_[e - 1];
  for (std::size_t a = 0; a < views.size(); ++a) {
    const View& view = views[a];
    for (std::uint32_t r = 0; r < view.header->rows; ++r) {
      const std::uint32_t end =
          r + 1 < view.header->rows ? view.info[r + 1].first_entry : view.header->entries;
      for (std::uint32_t i = view.info[r].first_entry; i < end; ++i) {
        const std::uint32_t place = places_[view.entries[i].local_expert]++;
        where_[a][i] = place;
        shape_.kernels->copy(grouped_.data() + place * shape_.row_bytes,
                             view.row(r, shape_.row_bytes), shape_.row_bytes);
      }
    }
  }
}

void Reducer::reduce(std::uint32_t source, const View& view, std::uint32_t row, std::byte* to,
                     bool streaming) {
  const std::uint32_t begin = view.info[row].first_entry;
  const std::uint32_t end =
      row + 1 < view.header->rows ? view.info[row + 1].first_entry : view.header->entries;
  const std::byte* const own = view.row(row, shape_.row_bytes);
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::byte* y = own;
    if (shape_.grouped) y = grouped_.data() + where_[source][i] * shape_.row_bytes;
    if (shape_.byte_outputs != nullptr) {
      y = shape_.byte_outputs + std::to_integer<std::size_t>(y[0]) % 8 * shape_.wire_row_bytes;
    }
    rows_[i - begin] = y;
    weights_[i - begin] = view.entries[i].weight;
  }
  shape_.kernels->sum(shape_.wire)(
      {to, rows_.data(), weights_.data(), end - begin, shape_.hidden, streaming});
}

void Reducer::inspect(const std::vector<View>& views, const Inspector& inspector) const {
  for (std::uint32_t a = 0; a < views.size(); ++a) {
    for (std::uint32_t r = 0; r < views[a].header->rows; ++r) {
      inspector.row(inspector.context, a, views[a].info[r].token,
                    views[a].row(r, shape_.row_bytes));
    }
  }
}

bool beyond_caches(const BaselineShape& shape) noexcept {
  return shape.tokens * shape.row_bytes > (std::size_t{8} << 20);
}

void add_partials(const BaselineShape& shape, const Router& router, std::uint32_t token,
                  const std::vector<const std::byte*>& replies, std::byte* out) {
  const void* rows[256];
  std::uint32_t count = 0;
  for (std::uint32_t e = 0; e < shape.expert_ranks; ++e) {
    const std::int32_t row = router.row(token, e);
    if (row >= 0) rows[count++] = replies[e] + static_cast<std::size_t>(row) * shape.wire_row_bytes;
  }
  const bool around = beyond_caches(shape);
  std::byte* const to = out + token * shape.wire_row_bytes;
  if (count == 1) {
    (around ? shape.kernels->copy_streaming : shape.kernels->copy)(to, rows[0],
                                                                   shape.wire_row_bytes);
  } else {
    shape.kernels->sum(shape.wire)({to, rows, nullptr, count, shape.hidden, around});
  }
}

}  // namespace m2n::perf::mpi
