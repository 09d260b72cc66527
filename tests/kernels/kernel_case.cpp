#include "kernel_case.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <sstream>

#include "exact.hpp"

namespace m2n::test {
namespace {

constexpr std::byte guard{0xa5};
constexpr std::size_t guard_bytes = 192;

// Bytes at an offset from a 64-byte boundary, with guard bytes around.
class Placed {
 public:
  Placed(std::size_t bytes, std::size_t offset) : bytes_{bytes} {
    memory_.assign(bytes + offset + 2 * guard_bytes + 64, guard);
    const auto base = reinterpret_cast<std::uintptr_t>(memory_.data());
    first_ = (64 - base % 64) % 64 + guard_bytes + offset;
  }
  std::byte* data() { return memory_.data() + first_; }
  bool guards_whole() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < first_ || i >= first_ + bytes_) && memory_[i] != guard) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_ = 0;
  std::size_t first_ = 0;
};

void fill(DataType type, std::byte* to, std::span<const std::uint32_t> bits) {
  for (std::size_t i = 0; i < bits.size(); ++i) set_element(type, to, i, bits[i]);
}

std::string run(const transport::RowKernels& set, const SumCase& sum,
                const transport::SumRow& arguments, std::span<const std::uint32_t> expected) {
  set.sum(sum.input, sum.output)(arguments);
  set.fence_streaming();
  for (std::size_t i = 0; i < sum.columns; ++i) {
    const std::uint32_t bits = element(sum.output, static_cast<const std::byte*>(arguments.out), i);
    if (same(sum.output, bits, expected[i])) continue;
    std::ostringstream text;
    text << set.name << ' ' << name(sum.input) << " to " << name(sum.output) << ", "
         << arguments.count << " rows, " << sum.columns << " columns, streaming "
         << arguments.streaming << ", addend " << (arguments.addend != nullptr) << ": column " << i
         << std::hex << " is 0x" << bits << ", expected 0x" << expected[i];
    return text.str();
  }
  return {};
}

}  // namespace

std::uint32_t random_bits(Random& random, DataType type) {
  const Format format = format_of(type);
  const std::uint64_t draw = random();
  const auto arbitrary = static_cast<std::uint32_t>(draw >> 32) &
                         static_cast<std::uint32_t>((std::uint64_t{1} << format.bits()) - 1);
  const std::uint32_t sign = arbitrary & (1u << (format.bits() - 1));
  const std::uint32_t mantissa = arbitrary & ((1u << format.mantissa_bits) - 1);
  const std::uint32_t one = ((1u << (format.exponent_bits - 1)) - 1) << format.mantissa_bits;
  switch (draw % 32) {
    case 0:
      return arbitrary;
    case 1:
      return sign;
    case 2:
    case 3:
      return sign | mantissa;  // a denormal
    case 4:
      return sign | (format.infinity() - 1 - (mantissa & 3u));  // the largest ones
    case 5:
      return (draw & 0x300u) == 0 ? (sign | format.infinity()) : (sign | one);
    case 6:
      return (draw & 0x300u) == 0 ? (sign | format.infinity() | (mantissa | 1u)) : (sign | one);
    case 7:
      return sign | one | (mantissa & ~0x3fu & ((1u << format.mantissa_bits) - 1));
    case 8:
    case 9:  // around the smallest normal one
      return sign | ((1u << format.mantissa_bits) + (mantissa & 7u) - 4u);
    default: {  // within some powers of two of 1
      const auto shift = static_cast<std::uint32_t>(draw >> 8) % 8;
      return sign | (one - (shift << format.mantissa_bits) + mantissa);
    }
  }
}

std::uint32_t element(DataType type, const std::byte* base, std::size_t index) {
  std::uint32_t bits = 0;
  const std::size_t bytes = size_of(type);
  std::memcpy(&bits, base + index * bytes, bytes);
  return bits;
}

void set_element(DataType type, std::byte* base, std::size_t index, std::uint32_t bits) {
  const std::size_t bytes = size_of(type);
  std::memcpy(base + index * bytes, &bits, bytes);
}

GuardedMemory::GuardedMemory(std::size_t bytes, Side side) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t inner = (bytes + page) / page * page;
  mapped_bytes_ = inner + 2 * page;
  mapping_ = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc{};
  std::byte* first = static_cast<std::byte*>(mapping_) + page;
  if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc{};
  data_ = side == Side::begin ? first : first + inner - bytes;
}

GuardedMemory::~GuardedMemory() {
  munmap(mapping_, mapped_bytes_);
}

std::vector<std::uint32_t> SumCase::expected() const {
  std::vector<std::uint32_t> result(columns);
  for (std::size_t column = 0; column < columns; ++column) {
    std::uint32_t acc = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint32_t y = round_to(DataType::f32, decode(input, rows[i][column]));
      acc = exact_fma(std::bit_cast<std::uint32_t>(weights[i]), y, acc);
    }
    if (!addend.empty()) {
      const std::uint32_t more = round_to(DataType::f32, decode(output, addend[column]));
      acc = exact_fma(std::bit_cast<std::uint32_t>(1.0f), more, acc);
    }
    result[column] = round_to(output, decode(DataType::f32, acc));
  }
  return result;
}

SumCase random_case(Random& random, DataType input, DataType output, std::size_t columns,
                    std::uint32_t count) {
  SumCase result{input, output, columns, {}, {}, {}};
  for (std::uint32_t i = 0; i < count; ++i) {
    auto& row = result.rows.emplace_back();
    for (std::size_t j = 0; j < columns; ++j) row.push_back(random_bits(random, input));
    const std::uint64_t kind = random() % 8;
    result.weights.push_back(kind < 3 ? 1.0f
                                      : std::bit_cast<float>(random_bits(random, DataType::f32)));
  }
  if (random() % 2 == 0) {
    for (std::size_t j = 0; j < columns; ++j) {
      result.addend.push_back(random_bits(random, output));
    }
  }
  return result;
}

std::string run_sum(const transport::RowKernels& set, const SumCase& sum, const Offsets& offsets,
                    bool streaming, std::span<const std::uint32_t> expected) {
  Placed out{sum.columns * size_of(sum.output), offsets.out};
  Placed addend{sum.addend.size() * size_of(sum.output), offsets.addend};
  fill(sum.output, addend.data(), sum.addend);
  std::deque<Placed> rows;
  std::vector<const void*> pointers;
  for (const auto& row : sum.rows) {
    auto& placed = rows.emplace_back(sum.columns * size_of(sum.input), offsets.rows);
    fill(sum.input, placed.data(), row);
    pointers.push_back(placed.data());
  }
  const transport::SumRow arguments{
      out.data(),         pointers.data(),
      sum.weights.data(), static_cast<std::uint32_t>(sum.rows.size()),
      sum.columns,        sum.addend.empty() ? nullptr : addend.data(),
      streaming};
  std::string error = run(set, sum, arguments, expected);
  if (error.empty() && !out.guards_whole()) error = std::string{set.name} + ": wrote outside";
  return error;
}

std::string run_guarded_sum(const transport::RowKernels& set, const SumCase& sum,
                            GuardedMemory::Side side, bool streaming,
                            std::span<const std::uint32_t> expected) {
  const GuardedMemory out{sum.columns * size_of(sum.output), side};
  const GuardedMemory addend{sum.addend.size() * size_of(sum.output), side};
  fill(sum.output, addend.data(), sum.addend);
  std::deque<GuardedMemory> rows;
  std::vector<const void*> pointers;
  for (const auto& row : sum.rows) {
    auto& memory = rows.emplace_back(sum.columns * size_of(sum.input), side);
    fill(sum.input, memory.data(), row);
    pointers.push_back(memory.data());
  }
  const transport::SumRow arguments{
      out.data(),         pointers.data(),
      sum.weights.data(), static_cast<std::uint32_t>(sum.rows.size()),
      sum.columns,        sum.addend.empty() ? nullptr : addend.data(),
      streaming};
  return run(set, sum, arguments, expected);
}

}  // namespace m2n::test
