// Puts between two ranks: a stream of them, and back and forth.
#include "perf/put.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>

#include "perf/stats.hpp"
#include "transport/transport.hpp"

namespace m2n::perf {
namespace {

using transport::Blob;

constexpr std::size_t words_bytes = 4096;  // in front of the data: word 0 = puts, word 1 = answers
constexpr std::uint64_t deadline_ns = 20'000'000'000;
constexpr std::chrono::seconds store_deadline{30};

class PutPair {
 public:
  PutPair(const Setup& setup, Board& board, std::shared_ptr<Store> store, std::uint32_t rank)
      : setup_{setup},
        board_{board},
        store_{std::move(store)},
        rank_{rank},
        other_{rank == 0 ? setup.attention_ranks : 0} {}

  Status connect(std::size_t most_bytes);
  Status everyone_connected();
  Status measure(std::size_t bytes, PutLine& line);
  std::string transport() const { return std::string{transport_->name()}; }

 private:
  Result<Blob> swap(const std::string& what, std::span<const std::byte> mine);
  Status put(std::size_t bytes);
  Status wait_word(std::uint32_t word, std::uint64_t value);
  void pump();
  Status ping_pong(std::size_t bytes, PutLine& line);
  Status stream(std::size_t bytes, PutLine& line);
  std::byte* data() { return transport_->local(memory_); }

  const Setup& setup_;
  Board& board_;
  std::shared_ptr<Store> store_;
  std::uint32_t rank_, other_;
  std::size_t most_ = 0;
  std::unique_ptr<transport::Transport> transport_;
  transport::PeerId peer_{};
  transport::MemoryId memory_{};
  transport::RemoteId remote_{};
  std::uint64_t sent_ = 0;
  std::uint64_t seen_ = 0;  // puts that must have come here
  Status broken_;
};

Result<Blob> PutPair::swap(const std::string& what, std::span<const std::byte> mine) {
  const auto key = [&](std::uint32_t rank) {
    return "m2n_perf/put/" + what + "/" + std::to_string(rank);
  };
  if (Status set = store_->set(key(rank_), mine); !set) return set;
  return store_->wait(key(other_), store_deadline);
}

Status PutPair::connect(std::size_t most_bytes) {
  most_ = (most_bytes + 4095) & ~std::size_t{4095};
  std::string name = setup_.options.transport;
  if (name == "auto") name = "shm";
  auto opened = transport::open_transport(name, {"m2n_perf-put", rank_, 0});
  if (!opened) return opened.status();
  transport_ = std::move(*opened);
  auto address = swap("address", transport_->address());
  if (!address) return address.status();
  auto peer = transport_->connect(*address);
  if (!peer) return peer.status();
  peer_ = *peer;
  // What is sent lies behind what comes.
  auto memory = transport_->add_memory({nullptr, words_bytes + 2 * most_, false});
  if (!memory) return memory.status();
  memory_ = *memory;
  auto table = transport_->add_signals(memory_, 0, 128, 2);
  if (!table) return table.status();
  auto blob = transport_->export_memory(memory_);
  if (!blob) return blob.status();
  auto theirs = swap("memory", *blob);
  if (!theirs) return theirs.status();
  auto remote = transport_->import_memory(peer_, *theirs);
  if (!remote) return remote.status();
  remote_ = *remote;
  for (std::size_t b = 0; b < most_; ++b) {
    data()[words_bytes + most_ + b] = static_cast<std::byte>((b * 31 + rank_) & 0xff);
  }
  return {};
}

Status PutPair::everyone_connected() {
  if (Status all = board_.barrier(); !all) return all;
  if (transport_) transport_->seal_memory(memory_);
  return {};
}

void PutPair::pump() {
  std::array<transport::Completion, 16> completions;
  const std::size_t count = transport_->progress(completions);
  for (std::size_t i = 0; i < count; ++i) {
    if (!completions[i].status) broken_ = completions[i].status;
  }
}

Status PutPair::put(std::size_t bytes) {
  const transport::Segment segment{memory_, words_bytes + most_, bytes};
  const std::span<const transport::Segment> segments{&segment, bytes != 0 ? 1U : 0U};
  const std::uint64_t limit = now_ns() + deadline_ns;
  while (true) {
    Status status = transport_->put(peer_, segments, {remote_, words_bytes},
                                    {remote_, 0, rank_ == 0 ? 0U : 1U}, sent_);
    if (status.code() != Code::again) {
      if (status) ++sent_;
      return status;
    }
    pump();
    if (!broken_) return broken_;
    if (now_ns() > limit) return Code::timeout;
  }
}

Status PutPair::wait_word(std::uint32_t word, std::uint64_t value) {
  auto& place = *reinterpret_cast<std::uint64_t*>(data() + word * std::size_t{128});
  const std::atomic_ref<std::uint64_t> signal{place};
  const std::uint64_t limit = now_ns() + deadline_ns;
  for (std::uint32_t tries = 1; signal.load(std::memory_order_acquire) < value; ++tries) {
    pump();
    if (!broken_) return broken_;
    if (tries % 1024 != 0) continue;
    ::sched_yield();
    if (board_.failed()) return Code::cancelled;
    if (now_ns() > limit) return Code::timeout;
  }
  return {};
}

Status PutPair::ping_pong(std::size_t bytes, PutLine& line) {
  const int turns = bytes > (4U << 20) ? 30 : bytes > (256U << 10) ? 200 : 2000;
  std::vector<double> times;
  for (int turn = -turns / 10; turn < turns; ++turn) {
    const std::uint64_t begin = now_ns();
    ++seen_;
    if (rank_ != 0) {
      if (Status come = wait_word(0, seen_); !come) return come;
    }
    if (Status ok = put(bytes); !ok) return ok;
    if (rank_ == 0) {
      if (Status come = wait_word(1, seen_); !come) return come;
      if (turn >= 0) times.push_back(static_cast<double>(now_ns() - begin) / 1e3);
    }
  }
  if (rank_ != 0) return {};
  line.pingpong_p50_us = *percentile(times, 0.5);
  line.pingpong_p99_us = *percentile(times, 0.99);
  return {};
}

// Rank 0 sends a number of puts, the other answers the last with a bare signal.
Status PutPair::stream(std::size_t bytes, PutLine& line) {
  constexpr int repeats = 5;
  const int puts = bytes > (4U << 20) ? 8 : bytes > (256U << 10) ? 64 : 512;
  std::vector<double> rates;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const std::uint64_t begin = now_ns();
    seen_ += rank_ == 0 ? 1U : static_cast<std::uint64_t>(puts);
    if (rank_ == 0) {
      for (int i = 0; i < puts; ++i) {
        if (Status ok = put(bytes); !ok) return ok;
      }
      if (Status come = wait_word(1, seen_); !come) return come;
      rates.push_back(static_cast<double>(bytes) * puts / static_cast<double>(now_ns() - begin));
    } else {
      if (Status come = wait_word(0, seen_); !come) return come;
      if (Status ok = put(0); !ok) return ok;
    }
  }
  if (rank_ == 0) line.put_gbps = *percentile(rates, 0.5);
  return {};
}

Status PutPair::measure(std::size_t bytes, PutLine& line) {
  if (Status ok = ping_pong(bytes, line); !ok) return ok;
  for (std::size_t b = 0; b < bytes; ++b) {
    const auto want = static_cast<std::byte>((b * 31 + other_) & 0xff);
    if (data()[words_bytes + b] != want) ++line.wrong;
  }
  return stream(bytes, line);
}

}  // namespace

std::string to_json(const PutLine& line) {
  nlohmann::ordered_json json;
  json["op"] = "put";
  json["transport"] = line.transport;
  json["bytes"] = line.bytes;
  json["put_gbps"] = line.put_gbps;
  json["pingpong_p50_us"] = line.pingpong_p50_us;
  json["pingpong_p99_us"] = line.pingpong_p99_us;
  json["flag_ns"] = line.flag_ns ? nlohmann::ordered_json(*line.flag_ns) : nullptr;
  json["wrong"] = line.wrong;
  return json.dump();
}

std::string put_table_head() {
  return fmt::format("{:>10} {:>9} {:>21}\n", "bytes", "put GB/s", "ping-pong p50/p99 us");
}

std::string table_row(const PutLine& line) {
  return fmt::format("{:>10} {:>9.2f} {:>10.2f} {:>10.2f}\n", line.bytes, line.put_gbps,
                     line.pingpong_p50_us, line.pingpong_p99_us);
}

Result<std::vector<PutLine>> run_put(const Setup& setup, Board& board, FlagProbe& probe,
                                     std::shared_ptr<Store> store, std::uint32_t rank) {
  PutPair pair{setup, board, std::move(store), rank};
  const bool works = rank == 0 || rank == setup.attention_ranks;
  const std::size_t most =
      *std::max_element(setup.options.tokens.begin(), setup.options.tokens.end()) *
      setup.row_bytes();
  if (works) {
    if (Status ok = pair.connect(most); !ok) return ok;
  }
  if (Status ok = pair.everyone_connected(); !ok) return ok;
  std::vector<PutLine> lines;
  for (const std::uint32_t tokens : setup.options.tokens) {
    PutLine line;
    line.bytes = tokens * setup.row_bytes();
    if (Status ok = probe.measure(board, line.flag_ns); !ok) return ok;
    if (works) {
      line.transport = pair.transport();
      if (Status ok = pair.measure(line.bytes, line); !ok) return ok;
    }
    board.number(rank, Number::wrong) = static_cast<double>(line.wrong);
    if (Status ok = board.barrier(); !ok) return ok;
    line.wrong = static_cast<std::uint64_t>(board.sum_number(Number::wrong));
    if (Status ok = board.barrier(); !ok) return ok;
    lines.push_back(line);
  }
  return lines;
}

}  // namespace m2n::perf
