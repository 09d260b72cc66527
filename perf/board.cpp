// The shared block: anonymous memory, found by other processes through /proc.
#include "perf/board.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

namespace m2n::perf {
namespace {

constexpr std::string_view path_key = "m2n_perf/board";

Status failed_call(const std::string& call) {
  return {Code::system, Scope::group, "m2n_perf: " + call + ": " + std::strerror(errno)};
}

std::shared_ptr<std::byte> map_block(int descriptor, std::size_t bytes) {
  const int flags = descriptor < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (base == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(base), [bytes](std::byte* block) { ::munmap(block, bytes); }};
}

}  // namespace

struct Board::Head {
  alignas(128) std::atomic<std::uint32_t> arrived{0};
  alignas(128) std::atomic<std::uint32_t> failed{0};
  std::atomic<std::uint32_t> port{0};
  std::uint64_t decision = 0;
  alignas(128) std::atomic<std::uint32_t> ping{0};
  alignas(128) std::atomic<std::uint32_t> pong{0};
};

namespace {
constexpr std::size_t head_bytes = 1024;
constexpr std::size_t numbers_bytes = 128;
static_assert(static_cast<std::size_t>(Number::count) * sizeof(double) <= numbers_bytes);
}  // namespace

Board::Board(std::shared_ptr<std::byte> block, std::uint32_t ranks)
    : block_{std::move(block)}, ranks_{ranks} {}

std::size_t Board::bytes_for(std::uint32_t ranks) noexcept {
  static_assert(sizeof(Head) <= head_bytes);
  return head_bytes + ranks * (numbers_bytes + max_records * sizeof(Record));
}

Board::Head& Board::head() const noexcept {
  return *reinterpret_cast<Head*>(block_.get());
}

Result<Board> Board::make(std::uint32_t ranks) {
  auto block = map_block(-1, bytes_for(ranks));
  if (!block) return failed_call("mmap");
  new (block.get()) Head;
  return Board{std::move(block), ranks};
}

Result<Board> Board::meet(Store& store, std::uint32_t rank, std::uint32_t ranks) {
  int descriptor = -1;
  if (rank == 0) {
    descriptor = ::memfd_create("m2n_perf", MFD_CLOEXEC);
    if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(bytes_for(ranks))) != 0) {
      return failed_call("memfd_create");
    }
    const std::string path =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor);
    auto block = map_block(descriptor, bytes_for(ranks));
    if (!block) return failed_call("mmap");
    new (block.get()) Head;
    Status set = store.set(path_key, std::as_bytes(std::span{path}));
    if (!set) return set;
    Board board{std::move(block), ranks};
    // The descriptor stays open until every rank has come.
    Status here = board.barrier();
    ::close(descriptor);
    if (!here) return here;
    return board;
  }
  auto value = store.wait(path_key, std::chrono::seconds{60});
  if (!value) return value.status();
  const std::string path(reinterpret_cast<const char*>(value->data()), value->size());
  descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return failed_call("open " + path + " (all ranks must run on one host)");
  auto block = map_block(descriptor, bytes_for(ranks));
  ::close(descriptor);
  if (!block) return failed_call("mmap");
  Board board{std::move(block), ranks};
  if (Status here = board.barrier(); !here) return here;
  return board;
}

Board Board::view() const {
  return Board{block_, ranks_};
}

Status Board::barrier() {
  const std::uint32_t full = ++turn_ * ranks_;
  auto& arrived = head().arrived;
  arrived.fetch_add(1);
  // Counts wrap; the difference does not.
  for (std::uint32_t tries = 0; static_cast<std::int32_t>(arrived.load() - full) < 0; ++tries) {
    if (failed()) return Code::cancelled;
    if (tries < 2000) {
      ::sched_yield();
    } else {
      const timespec nap{0, 50'000};
      ::nanosleep(&nap, nullptr);
    }
  }
  return failed() ? Status{Code::cancelled} : Status{};
}

void Board::fail() noexcept {
  head().failed.store(1);
}
bool Board::failed() const noexcept {
  return head().failed.load() != 0;
}

std::span<Record> Board::records(std::uint32_t rank) noexcept {
  std::byte* base = block_.get() + head_bytes + ranks_ * numbers_bytes;
  return {reinterpret_cast<Record*>(base) + rank * max_records, max_records};
}

double& Board::number(std::uint32_t rank, Number which) noexcept {
  std::byte* base = block_.get() + head_bytes + rank * numbers_bytes;
  return reinterpret_cast<double*>(base)[static_cast<std::size_t>(which)];
}

double Board::max_number(Number which) noexcept {
  double most = number(0, which);
  for (std::uint32_t rank = 1; rank < ranks_; ++rank) most = std::max(most, number(rank, which));
  return most;
}

double Board::sum_number(Number which) noexcept {
  double sum = 0;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) sum += number(rank, which);
  return sum;
}

std::uint64_t& Board::decision() noexcept {
  return head().decision;
}
std::atomic<std::uint32_t>& Board::port() noexcept {
  return head().port;
}
std::atomic<std::uint32_t>& Board::ping() noexcept {
  return head().ping;
}
std::atomic<std::uint32_t>& Board::pong() noexcept {
  return head().pong;
}

}  // namespace m2n::perf
