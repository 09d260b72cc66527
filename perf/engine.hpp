// Something that can do a round: the library, or a baseline. Each rank has its own; one thread uses
// it. An iteration is one round per micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "m2n/group.hpp"
#include "m2n/status.hpp"
#include "perf/record.hpp"
#include "perf/workload.hpp"

namespace m2n::perf {

struct Seat {
  const Setup* setup = nullptr;
  std::uint32_t rank = 0;
  std::uint32_t tokens = 0;
  const Workload* work = nullptr;  // of an attention rank, else null
  bool oversubscribed = false;     // more ranks than cores

  bool attention() const noexcept { return rank < setup->attention_ranks; }
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string name() const = 0;
  // Operations first, first + 1, ... one per record. With `check`, rows that are wrong are counted.
  virtual Status iterate(std::uint64_t first, bool check, std::span<Record> records) = 0;
  std::uint64_t take_wrong() noexcept { return std::exchange(wrong_, 0); }
  // Bytes of the dispatches so far, or 0 where nobody counts.
  virtual std::uint64_t wire_bytes() const { return 0; }
  virtual std::uint64_t logical_bytes() const { return 0; }

 protected:
  std::uint64_t wrong_ = 0;
};

// Whole batches, or pieces of them where Setup::piece says so.
Result<std::unique_ptr<Engine>> make_library_engine(const Seat& seat, Group& group);
Result<std::unique_ptr<Engine>> make_pieces_engine(const Seat& seat, Group& group);

}  // namespace m2n::perf
