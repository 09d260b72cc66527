// The small vocabulary of the contract: enumerations and views of the caller's memory.
// Views own nothing; who may touch the memory behind one, and until when, stands at each verb.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace m2n {

enum class DataType : std::uint8_t { bf16, f16, f32, fp8_e4m3, fp8_e5m2, i8 };

// Bytes of one element.
constexpr std::size_t size_of(DataType type) noexcept {
  switch (type) {
    case DataType::bf16:
    case DataType::f16:
      return 2;
    case DataType::f32:
      return 4;
    case DataType::fp8_e4m3:
    case DataType::fp8_e5m2:
    case DataType::i8:
      return 1;
  }
  return 0;
}

constexpr const char* name(DataType type) noexcept {
  switch (type) {
    case DataType::bf16:
      return "bf16";
    case DataType::f16:
      return "f16";
    case DataType::f32:
      return "f32";
    case DataType::fp8_e4m3:
      return "fp8_e4m3";
    case DataType::fp8_e5m2:
      return "fp8_e5m2";
    case DataType::i8:
      return "i8";
  }
  return "unknown";
}

// What a channel is for. Values from 2 on are the user's own.
enum class Phase : std::uint32_t { decode = 0, prefill = 1 };

// reduced: an expert rank adds its experts of a token before it replies (one row per token and
// rank). per_expert: every (token, expert, part) row comes back and the attention rank adds them.
enum class Combine : std::uint8_t { reduced, per_expert };

// How a batch lies in memory at the expert rank.
// rows: per source, in (source, token) order, in place.
// grouped: [local experts, capacity, row], rows of an expert in (source, token) order.
// packed: 2-D, expert after expert, each start aligned to `packed_alignment` rows.
enum class Layout : std::uint8_t { rows, grouped, packed };

// every: lockstep, each pair exchanges each operation, also an empty one.
// touched: aggregation, only expert ranks that get a token hear of an operation.
enum class Presence : std::uint8_t { every, touched };

// library: routing weights are applied by m2n, once. caller: never; the expert side may read them.
enum class Weights : std::uint8_t { library, caller };

// push: rows are copied into the receiver's window. shared: receivers gather from the sender's
// arena. automatic: rows that lie in the arena are shared; others go the way that costs the sender
// less, which it measures; pushed where peers share no memory.
enum class ExchangeKind : std::uint8_t { automatic, push, shared };

// How a blocked call spends its time. automatic = spin, then yield, then sleep.
enum class Wait : std::uint8_t { automatic, spin, yield, sleep };

// Which copy of a replicated expert gets a token. balanced: spread evenly, rotating over
// operations. local_first: a replica on the sender's host if there is one, else balanced.
enum class ReplicaChoice : std::uint8_t { balanced, local_first };

// How long a call may block. The default is the group's step timeout.
class Timeout {
 public:
  constexpr Timeout() noexcept = default;
  constexpr explicit Timeout(std::chrono::nanoseconds after) noexcept
      : kind_{Kind::after}, after_{after} {}
  static constexpr Timeout never() noexcept {
    Timeout timeout;
    timeout.kind_ = Kind::never;
    return timeout;
  }
  constexpr bool is_standard() const noexcept { return kind_ == Kind::standard; }
  constexpr bool is_never() const noexcept { return kind_ == Kind::never; }
  constexpr std::chrono::nanoseconds after() const noexcept { return after_; }

 private:
  enum class Kind : std::uint8_t { standard, after, never };
  Kind kind_ = Kind::standard;
  std::chrono::nanoseconds after_{0};
};

// [rows, n] elements that m2n reads. Elements of a row are adjacent.
struct ConstRows {
  const void* base = nullptr;        // may be null only when there are 0 rows
  std::size_t row_stride_bytes = 0;  // 0 = rows are adjacent
  std::size_t column_stride = 1;     // in elements; only 1 is supported, anything else is `invalid`
};

// [rows, n] elements that m2n writes.
struct MutableRows {
  void* base = nullptr;
  std::size_t row_stride_bytes = 0;  // 0 = rows are adjacent
};

// [tokens, top_k] expert ids in the order the gate chose them; -1 = no expert.
struct ExpertIds {
  enum class Type : std::uint8_t { i32, i64 };
  const void* base = nullptr;
  Type type = Type::i32;
  std::size_t row_stride = 0;  // in elements; 0 = top_k

  ExpertIds() = default;
  ExpertIds(const std::int32_t* ids, std::size_t stride = 0)
      : base{ids}, type{Type::i32}, row_stride{stride} {}
  ExpertIds(const std::int64_t* ids, std::size_t stride = 0)
      : base{ids}, type{Type::i64}, row_stride{stride} {}
};

// [tokens, top_k] routing weights, f32 or bf16. A null base means weight 1 everywhere.
struct RoutingWeights {
  const void* base = nullptr;
  DataType type = DataType::f32;
  std::size_t row_stride = 0;  // in elements; 0 = top_k

  RoutingWeights() = default;
  RoutingWeights(const float* weights, std::size_t stride = 0)
      : base{weights}, row_stride{stride} {}
  RoutingWeights(const void* weights, DataType kind, std::size_t stride)
      : base{weights}, type{kind}, row_stride{stride} {}
};

}  // namespace m2n
