// The loops of the vector variants, over an instruction set `Isa` that the including source
// defines. Everything here has internal linkage on purpose: each variant is built with other -m
// flags, so no function of one may serve another. Include it only in row_kernels_<variant>.cpp.
//
// An Isa handles `Isa::block` columns at a time as two vectors of f32 (a Pair). Their order is the
// Isa's: interleaved (even columns, odd columns) where both types are bf16, which saves widening
// and packing shuffles, else halves. Columns never meet, so the order cannot change a result.
//
// Rounding mode, denormal handling: the CPU's defaults are assumed for f32 arithmetic. In a thread
// that has set flush-to-zero or denormals-are-zero, f32 denormals vanish from sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/row_kernels.hpp"

namespace m2n::transport {
namespace {

constexpr std::size_t element_bytes(DataType type) {
  return type == DataType::f32 ? 4 : (type == DataType::i8 ? 1 : 2);
}

inline std::size_t misalignment(const void* pointer, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) & (alignment - 1);
}

// Bytes from `to` on until a vector store is aligned; none where elements straddle vectors.
template <class Isa, DataType type>
std::size_t head_bytes(const void* to) {
  if (misalignment(to, element_bytes(type)) != 0) return 0;
  return (Isa::vector_bytes - misalignment(to, Isa::vector_bytes)) & (Isa::vector_bytes - 1);
}

// Plain stores ask for their lines this far ahead: a line of a window is far more often in another
// core's cache than in ours, and one store buffer alone does not keep enough of them on their way.
inline constexpr std::size_t own_ahead_bytes = 2048;

inline void own_lines(std::byte* to, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(to + at, 1, 3);
}

// Moves aligned vectors; returns the bytes done.
template <class Isa, DataType type, bool streaming>
inline std::size_t move_vectors(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t step = Isa::vector_bytes;
  std::size_t done = 0;
  if constexpr (!streaming) own_lines(to, bytes < own_ahead_bytes ? bytes : own_ahead_bytes);
  for (; done + 4 * step <= bytes; done += 4 * step) {
    if constexpr (!streaming) {
      if (done + own_ahead_bytes + 4 * step <= bytes)
        own_lines(to + done + own_ahead_bytes, 4 * step);
    }
    const auto a = Isa::template add_zero<type>(Isa::load_raw(from + done));
    const auto b = Isa::template add_zero<type>(Isa::load_raw(from + done + step));
    const auto c = Isa::template add_zero<type>(Isa::load_raw(from + done + 2 * step));
    const auto d = Isa::template add_zero<type>(Isa::load_raw(from + done + 3 * step));
    Isa::template store_raw<streaming>(to + done, a);
    Isa::template store_raw<streaming>(to + done + step, b);
    Isa::template store_raw<streaming>(to + done + 2 * step, c);
    Isa::template store_raw<streaming>(to + done + 3 * step, d);
  }
  for (; done + step <= bytes; done += step) {
    Isa::template store_raw<streaming>(to + done,
                                       Isa::template add_zero<type>(Isa::load_raw(from + done)));
  }
  return done;
}

// to = from + (+0), which only changes -0; type i8 stands for opaque bytes that are copied.
template <class Isa, DataType type>
inline void move_row(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming) {
  std::size_t done = head_bytes<Isa, type>(to);
  if (done > bytes) done = bytes;
  if (done != 0) {
    Isa::store_raw_some(to, done, Isa::template add_zero<type>(Isa::load_raw_some(from, done)));
  }
  if (streaming && misalignment(to + done, Isa::vector_bytes) == 0) {
    done += move_vectors<Isa, type, true>(to + done, from + done, bytes - done);
  } else {
    done += move_vectors<Isa, type, false>(to + done, from + done, bytes - done);
  }
  if (done < bytes) {
    const std::size_t rest = bytes - done;
    Isa::store_raw_some(to + done, rest,
                        Isa::template add_zero<type>(Isa::load_raw_some(from + done, rest)));
  }
}

template <class Isa, DataType input, DataType output>
struct Sum {
  using Pair = typename Isa::Pair;
  static constexpr bool interleaved = input == DataType::bf16 && output == DataType::bf16;
  static constexpr std::size_t in_bytes = element_bytes(input);
  static constexpr std::size_t out_bytes = element_bytes(output);

  static const std::byte* at(const void* base, std::size_t column, std::size_t bytes) {
    return static_cast<const std::byte*>(base) + column * bytes;
  }

  // Columns [first, first + blocks * Isa::block). Rows inside, accumulators in registers.
  // Inlined, so that constants stay in registers from one group to the next.
  template <unsigned blocks, bool streaming>
  [[gnu::always_inline]] static inline void whole(const SumRow& row, std::size_t first) {
    Pair acc[blocks];
#pragma GCC unroll 4
    for (unsigned b = 0; b < blocks; ++b) acc[b] = {Isa::zero(), Isa::zero()};
    for (std::uint32_t i = 0; i < row.count; ++i) {
      const auto weight = Isa::broadcast(row.weights[i]);
      const std::byte* from = at(row.rows[i], first, in_bytes);
#pragma GCC unroll 4
      for (unsigned b = 0; b < blocks; ++b) {
        const Pair y = Isa::template load<input, interleaved>(from + b * Isa::block * in_bytes);
        acc[b] = {Isa::fma(weight, y.a, acc[b].a), Isa::fma(weight, y.b, acc[b].b)};
      }
    }
    std::byte* to = static_cast<std::byte*>(row.out) + first * out_bytes;
    if (row.addend != nullptr) {
      const std::byte* from = at(row.addend, first, out_bytes);
#pragma GCC unroll 4
      for (unsigned b = 0; b < blocks; ++b) {
        const Pair y = Isa::template load<output, interleaved>(from + b * Isa::block * out_bytes);
        acc[b] = {Isa::add(acc[b].a, y.a), Isa::add(acc[b].b, y.b)};
      }
    }
#pragma GCC unroll 4
    for (unsigned b = 0; b < blocks; ++b) {
      Isa::template store<output, interleaved, streaming>(to + b * Isa::block * out_bytes, acc[b]);
    }
  }

  // Columns [first, first + n), 0 < n < Isa::block, touching nothing beside them.
  static inline void some(const SumRow& row, std::size_t first, std::size_t n) {
    Pair acc{Isa::zero(), Isa::zero()};
    for (std::uint32_t i = 0; i < row.count; ++i) {
      const auto weight = Isa::broadcast(row.weights[i]);
      const Pair y =
          Isa::template load_some<input, interleaved>(at(row.rows[i], first, in_bytes), n);
      acc = {Isa::fma(weight, y.a, acc.a), Isa::fma(weight, y.b, acc.b)};
    }
    if (row.addend != nullptr) {
      const Pair y =
          Isa::template load_some<output, interleaved>(at(row.addend, first, out_bytes), n);
      acc = {Isa::add(acc.a, y.a), Isa::add(acc.b, y.b)};
    }
    Isa::template store_some<output, interleaved>(
        static_cast<std::byte*>(row.out) + first * out_bytes, n, acc);
  }

  template <bool streaming>
  static inline void from_column(const SumRow& row, std::size_t first) {
    for (; first + 4 * Isa::block <= row.columns; first += 4 * Isa::block) {
      whole<4, streaming>(row, first);
    }
    for (; first + Isa::block <= row.columns; first += Isa::block) whole<1, streaming>(row, first);
    if (first < row.columns) some(row, first, row.columns - first);
  }

  static void run(const SumRow& row) {
    if constexpr (input == output) {
      // The commonest case: one expert of full weight. fma(1, x, +0) is x, but for -0.
      if (row.count == 1 && row.addend == nullptr && row.weights[0] == 1.0f) {
        move_row<Isa, input>(static_cast<std::byte*>(row.out), at(row.rows[0], 0, 0),
                             row.columns * in_bytes, row.streaming);
        return;
      }
    }
    if (!row.streaming || misalignment(row.out, out_bytes) != 0) {
      from_column<false>(row, 0);
      return;
    }
    std::size_t head = head_bytes<Isa, output>(row.out) / out_bytes;
    if (head > row.columns) head = row.columns;
    if (head != 0) some(row, 0, head);
    from_column<true>(row, head);
  }
};

template <class Isa, DataType input>
SumFunction sum_to(DataType output) {
  switch (output) {
    case DataType::bf16:
      return Sum<Isa, input, DataType::bf16>::run;
    case DataType::f16:
      return Sum<Isa, input, DataType::f16>::run;
    case DataType::f32:
      return Sum<Isa, input, DataType::f32>::run;
    default:
      return nullptr;
  }
}

template <class Isa>
SumFunction sum_of(DataType input, DataType output) {
  switch (input) {
    case DataType::bf16:
      return sum_to<Isa, DataType::bf16>(output);
    case DataType::f16:
      return sum_to<Isa, DataType::f16>(output);
    case DataType::f32:
      return sum_to<Isa, DataType::f32>(output);
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace m2n::transport
