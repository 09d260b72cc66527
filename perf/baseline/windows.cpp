// Dispatch and combine without messages, by memory that all ranks share (MPI_Win_allocate_shared):
// the sender stores rows into the receiver's segment and then raises a flag there; replies come
// with a count of complete rows, so that the attention rank adds while the expert rank still works.
// Nothing of MPI is called in a round: it started the program and made the memory. One host.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "perf/baseline/rounds.hpp"
#include "perf/baseline/rows.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace m2n::perf::mpi {
namespace {

// One sender's part of a receiver's segment: places, each a flag in a line of its own and a body.
// Round r uses place r % places. A message may be written where one lies whose reply is complete; a
// reply anywhere, as its reader has sent a message since it used the last one.
struct Flag {
  // Messages: rounds so far. Replies: the same << 32 | rows complete.
  alignas(64) std::atomic<std::uint64_t> value;
};

class SharedWindows final : public BaselineRounds {
 public:
  explicit SharedWindows(const BaselineShape& shape);
  ~SharedWindows() override;
  SharedWindows(const SharedWindows&) = delete;
  SharedWindows& operator=(const SharedWindows&) = delete;
  void attention(const std::byte* x, const std::int32_t* ids, const float* weights, std::byte* out,
                 Record& record) override;
  void expert(const Inspector* inspector, Record& record) override;

 private:
  static constexpr std::size_t distance = 4 << 20;  // until a line comes back, as in Ring
  static constexpr std::uint32_t rows_per_flag = 4;

  std::byte* segment(std::uint32_t rank) const;
  void map_pages() const;
  // This round's place of `sender` in the segment of rank `receiver`.
  std::byte* place(std::byte* segment, std::uint32_t sender) const {
    return segment + (sender * places_ + turn_ % places_) * one_;
  }
  static Flag& flag(std::byte* place) { return *std::launder(reinterpret_cast<Flag*>(place)); }
  std::uint64_t wait_for(const Flag& flag, std::uint64_t least) const;
  void send_rows(std::uint32_t expert_rank, const std::byte* x);
  void reply(std::uint32_t attention_rank);

  const BaselineShape shape_;
  std::size_t one_;
  std::size_t places_;
  bool around_;  // write around the caches
  Router router_;
  Reducer reducer_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> segments_;  // of the ranks of the other side
  std::byte* own_ = nullptr;
  std::uint64_t turn_ = 0;
  std::vector<View> views_;
  std::vector<const std::byte*> replies_;
  std::vector<std::uint32_t> arrived_;
};

SharedWindows::SharedWindows(const BaselineShape& shape)
    : shape_{shape},
      one_{(sizeof(Flag) + info_bytes(shape.tokens, shape.tokens * shape.top_k) +
            shape.tokens * std::max(shape.row_bytes, shape.wire_row_bytes) + 63) &
           ~std::size_t{63}},
      around_{beyond_caches(shape)},
      router_{shape},
      reducer_{shape},
      views_(shape.attention_ranks),
      replies_(shape.expert_ranks),
      arrived_(shape.expert_ranks) {
  const bool attention = shape_.is_attention();
  const std::uint32_t senders = attention ? shape_.expert_ranks : shape_.attention_ranks;
  // The same on both sides, as both compute addresses in the other's segment.
  const std::size_t most = std::max(shape_.attention_ranks, shape_.expert_ranks);
  places_ = std::max<std::size_t>(1, distance / most / one_);
  void* base = nullptr;
  const std::size_t bytes = senders * places_ * one_;
  MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes + 64), 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                          &base, &window_);
  MPI_Win_lock_all(MPI_MODE_NOCHECK, window_);
  own_ = segment(shape_.rank);
  std::fill(own_, own_ + bytes, std::byte{0});
  for (std::size_t i = 0; i < senders * places_; ++i) new (own_ + i * one_) Flag{};
  const std::uint32_t first = attention ? shape_.attention_ranks : 0;
  for (std::uint32_t peer = 0; peer < senders; ++peer) {
    segments_.push_back(segment(first + peer));
  }
  MPI_Win_sync(window_);
  MPI_Barrier(MPI_COMM_WORLD);
  map_pages();
  MPI_Win_sync(window_);
  MPI_Barrier(MPI_COMM_WORLD);
}

// This process's part of the others' segments, so that no round waits for the kernel.
void SharedWindows::map_pages() const {
  constexpr std::size_t page = 4096;
  const bool attention = shape_.is_attention();
  const std::uint32_t self = attention ? shape_.rank : shape_.rank - shape_.attention_ranks;
  for (std::byte* const segment : segments_) {
    auto* const part = reinterpret_cast<std::uint8_t*>(segment + self * places_ * one_);
    const std::size_t end = places_ * one_ - 1;
    for (std::size_t at = 0; at < end; at += page) std::atomic_ref{part[at]}.fetch_or(0);
    std::atomic_ref{part[end]}.fetch_or(0);
  }
}

SharedWindows::~SharedWindows() {
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
}

// The same place in every process, whose mappings differ by whole pages.
std::byte* SharedWindows::segment(std::uint32_t rank) const {
  MPI_Aint bytes = 0;
  int unit = 0;
  void* base = nullptr;
  MPI_Win_shared_query(window_, static_cast<int>(rank), &bytes, &unit, &base);
  const auto at = reinterpret_cast<std::uintptr_t>(base);
  return static_cast<std::byte*>(base) + (64 - at % 64) % 64;
}

std::uint64_t SharedWindows::wait_for(const Flag& flag, std::uint64_t least) const {
  const std::uint32_t spins = shape_.oversubscribed ? 20 : 20'000;
  for (std::uint32_t tries = 0;; ++tries) {
    const std::uint64_t value = flag.value.load(std::memory_order_acquire);
    if (value >= least) return value;
    if (tries < spins) {
#if defined(__x86_64__)
      _mm_pause();
#endif
    } else {
      ::sched_yield();
    }
  }
}

void SharedWindows::send_rows(std::uint32_t expert_rank, const std::byte* x) {
  std::byte* const to = place(segments_[expert_rank], shape_.rank);
  // An expert rank that got no rows has not been waited for.
  if (turn_ >= places_) wait_for(flag(place(own_, expert_rank)), (turn_ + 1 - places_) << 32);
  std::byte* const body = to + sizeof(Flag);
  const std::size_t info = router_.write_info(expert_rank, body, false);
  router_.pack_rows(expert_rank, body + info, x);
  flag(to).value.store(turn_ + 1, std::memory_order_release);
}

void SharedWindows::attention(const std::byte* x, const std::int32_t* ids, const float* weights,
                              std::byte* out, Record& record) {
  record.start = now_ns();
  router_.plan(ids, weights);
  const std::uint32_t n = shape_.expert_ranks;
  for (std::uint32_t i = 0; i < n; ++i) send_rows((shape_.rank + i) % n, x);
  for (std::uint32_t e = 0; e < n; ++e) {
    replies_[e] = place(own_, e) + sizeof(Flag);
    arrived_[e] = 0;
  }
  for (std::uint32_t t = 0; t < shape_.tokens; ++t) {
    for (std::uint32_t e = 0; e < n; ++e) {
      const std::int32_t row = router_.row(t, e);
      if (row < 0 || static_cast<std::uint32_t>(row) < arrived_[e]) continue;
      const std::uint64_t least = (turn_ + 1) << 32 | (static_cast<std::uint32_t>(row) + 1);
      arrived_[e] = static_cast<std::uint32_t>(wait_for(flag(place(own_, e)), least));
    }
    add_partials(shape_, router_, t, replies_, out);
  }
  if (around_) shape_.kernels->fence();
  ++turn_;
  record.end = now_ns();
}

void SharedWindows::reply(std::uint32_t attention_rank) {
  const View& view = views_[attention_rank];
  std::byte* const to = place(segments_[attention_rank], shape_.rank - shape_.attention_ranks);
  std::byte* const rows = to + sizeof(Flag);
  if (view.header->rows == 0) {
    flag(to).value.store((turn_ + 1) << 32, std::memory_order_release);
  }
  for (std::uint32_t r = 0; r < view.header->rows; ++r) {
    reducer_.reduce(attention_rank, view, r, rows + r * shape_.wire_row_bytes, around_);
    if ((r + 1) % rows_per_flag != 0 && r + 1 != view.header->rows) continue;
    if (around_) shape_.kernels->fence();
    flag(to).value.store((turn_ + 1) << 32 | (r + 1), std::memory_order_release);
  }
}

void SharedWindows::expert(const Inspector* inspector, Record& record) {
  const std::uint32_t m = shape_.attention_ranks;
  for (std::uint32_t a = 0; a < m; ++a) {
    std::byte* const from = place(own_, a);
    wait_for(flag(from), turn_ + 1);
    views_[a] = view_of(from + sizeof(Flag));
  }
  reducer_.group(views_);
  record.readable = now_ns();
  if (inspector != nullptr) reducer_.inspect(views_, *inspector);
  record.reply = now_ns();
  const std::uint32_t own = shape_.rank - m;
  for (std::uint32_t i = 0; i < m; ++i) reply((own + i) % m);
  ++turn_;
  record.end = now_ns();
}

}  // namespace

BaselineRounds* make_shared_windows(const BaselineShape& shape) {
  return new SharedWindows{shape};
}

}  // namespace m2n::perf::mpi
