// Rows of x, plans and the data check.
#include "perf/workload.hpp"

#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "perf/kernels.hpp"

namespace m2n::perf {
namespace {

constexpr std::uint32_t windows = 1024;
constexpr std::uint32_t columns = 64;

// Random elements around 1; a row repeats a window of 64 of them, so that rows name themselves.
template <class Element>
std::vector<Element> make_table(DataType type) {
  std::vector<Element> table(windows + 4 * columns);
  Random random{77};
  for (Element& element : table) {
    const double size = std::ldexp(1.0 + random.unit(), static_cast<int>(random.below(4)) - 2);
    const double value = random.below(2) != 0 ? size : -size;
    element = static_cast<Element>(from_float(type, static_cast<float>(value)));
  }
  return table;
}

struct Tables {
  std::vector<std::uint16_t> bf16 = make_table<std::uint16_t>(DataType::bf16);
  std::vector<std::uint16_t> f16 = make_table<std::uint16_t>(DataType::f16);
  std::vector<std::uint32_t> f32 = make_table<std::uint32_t>(DataType::f32);
};

const Tables& tables() {
  static const Tables all;
  return all;
}

std::uint32_t mix(std::uint32_t attention, std::uint32_t token, std::uint64_t operation) {
  std::uint64_t z = token * 0x9e3779b97f4a7c15ULL ^ operation * 0xbf58476d1ce4e5b9ULL ^
                    (attention + 1) * 0x94d049bb133111ebULL;
  z ^= z >> 29;
  z *= 0xd6e8feb86659fd93ULL;
  return static_cast<std::uint32_t>(z >> 40);
}

std::uint32_t bits_at(DataType type, std::uint32_t place) {
  if (type == DataType::f32) return tables().f32[place];
  return type == DataType::f16 ? tables().f16[place] : tables().bf16[place];
}

// 256 bytes that a row repeats.
void write_pattern(DataType type, std::uint32_t window, std::byte* out) {
  const std::size_t bytes = columns * size_of(type);
  const std::byte* from = nullptr;
  if (type == DataType::f32) {
    from = reinterpret_cast<const std::byte*>(&tables().f32[window]);
  } else {
    from = reinterpret_cast<const std::byte*>(type == DataType::f16 ? &tables().f16[window]
                                                                    : &tables().bf16[window]);
  }
  for (std::size_t b = 0; b < 256; b += bytes) std::memcpy(out + b, from, bytes);
}

// Byte payloads: kind k is 64 bytes of its own, beginning with k.
void write_byte_pattern(std::uint32_t kind, std::byte* out) {
  for (std::uint32_t i = 0; i < 256; ++i) {
    const std::uint32_t column = i % columns;
    out[i] = static_cast<std::byte>(column == 0 ? kind : (kind * 37 + column * 11) & 0xff);
  }
}

void write_row_pattern(const Setup& setup, std::uint32_t draw, std::byte* out) {
  if (setup.byte_payload()) {
    write_byte_pattern(draw % ByteOutputs::kinds, out);
  } else {
    write_pattern(setup.options.dtype, draw % windows, out);
  }
}

}  // namespace

Buffer::Buffer(std::size_t bytes, bool touched) : bytes_{bytes} {
  const std::size_t mapped = (bytes + 4096) & ~std::size_t{4095};
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (touched ? MAP_POPULATE : MAP_NORESERVE);
  void* base = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc{};
  block_ = {static_cast<std::byte*>(base), [mapped](std::byte* block) { ::munmap(block, mapped); }};
}

void Plan::make(const Setup& setup, const Choices& choices, std::uint32_t tokens) {
  to.resize(setup.expert_ranks);
  for (PairPlan& pair : to) {
    pair.tokens.clear();
    pair.first_entry.clear();
    pair.local_expert.clear();
    pair.weight.clear();
  }
  first.clear();
  rank.clear();
  row.clear();
  for (std::uint32_t t = 0; t < tokens; ++t) {
    first.push_back(static_cast<std::uint32_t>(rank.size()));
    for (std::uint32_t k = 0; k < setup.top_k; ++k) {
      const std::size_t at = std::size_t{t} * setup.top_k + k;
      if (choices.ids[at] < 0) continue;
      const auto expert = static_cast<std::uint32_t>(choices.ids[at]);
      for (std::uint32_t part = 0; part < setup.placement.parts(expert); ++part) {
        const Replica home = setup.placement.replicas(expert, part)[0];
        PairPlan& pair = to[home.rank];
        if (pair.tokens.empty() || pair.tokens.back() != t) {
          rank.push_back(home.rank);
          row.push_back(static_cast<std::uint32_t>(pair.tokens.size()));
          pair.tokens.push_back(t);
          pair.first_entry.push_back(static_cast<std::uint32_t>(pair.local_expert.size()));
        }
        pair.local_expert.push_back(home.local_expert);
        pair.weight.push_back(choices.weights[at]);
      }
    }
  }
  first.push_back(static_cast<std::uint32_t>(rank.size()));
  for (PairPlan& pair : to) {
    pair.first_entry.push_back(static_cast<std::uint32_t>(pair.local_expert.size()));
  }
}

std::size_t Plan::entries() const noexcept {
  std::size_t sum = 0;
  for (const PairPlan& pair : to) sum += pair.local_expert.size();
  return sum;
}

Workload::Workload(const Setup& setup, std::uint32_t attention, std::uint32_t tokens)
    : setup_{setup}, attention_{attention}, tokens_{tokens} {
  const RoutingShape shape = setup.shape(tokens);
  const std::uint32_t period = routing_period(setup.routing, shape);
  for (std::uint32_t operation = 0; operation < period; ++operation) {
    choices_.push_back(make_choices(setup.routing, shape, attention, operation));
  }
  (void)tables();
}

void Workload::produce(std::byte* x, std::size_t stride_bytes, std::uint64_t operation) const {
  const auto fill = kernels().fill;
  const std::size_t bytes = setup_.row_bytes();
  alignas(64) std::byte pattern[256];
  for (std::uint32_t t = 0; t < tokens_; ++t) {
    write_row_pattern(setup_, mix(attention_, t, operation), pattern);
    fill(x + t * stride_bytes, pattern, bytes);
  }
}

bool same_row(const Setup& setup, const RowName& name, const std::byte* row) {
  std::byte pattern[256];
  write_row_pattern(setup, mix(name.attention, name.token, name.operation), pattern);
  const std::size_t bytes = setup.row_bytes();
  for (std::size_t b = 0; b < bytes; b += 256) {
    if (std::memcmp(row + b, pattern, std::min<std::size_t>(256, bytes - b)) != 0) return false;
  }
  return true;
}

// y of a token at a column, as a float: every expert gives the same.
std::uint32_t Workload::x_bits(std::uint32_t token, std::uint64_t operation,
                               std::uint32_t column) const {
  const std::uint32_t draw = mix(attention_, token, operation);
  if (setup_.byte_payload()) {
    return bits_at(setup_.wire, draw % ByteOutputs::kinds * columns + column);
  }
  return bits_at(setup_.wire, draw % windows + column);
}

void Workload::expect(std::uint32_t token, std::uint64_t operation,
                      std::array<std::uint32_t, period_elements>& bits) const {
  const Choices& chosen = choices(operation);
  const bool reduced = setup_.options.combine == Combine::reduced;
  const std::uint32_t ranks = reduced ? setup_.expert_ranks : 1;
  for (std::uint32_t column = 0; column < period_elements; ++column) {
    const float y = to_float(setup_.wire, x_bits(token, operation, column));
    float total = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      float partial = reduced ? 0 : total;
      for (std::uint32_t k = 0; k < setup_.top_k; ++k) {
        const std::size_t at = std::size_t{token} * setup_.top_k + k;
        if (chosen.ids[at] < 0 || chosen.weights[at] == 0) continue;
        const auto expert = static_cast<std::uint32_t>(chosen.ids[at]);
        for (std::uint32_t part = 0; part < setup_.placement.parts(expert); ++part) {
          if (reduced && setup_.placement.replicas(expert, part)[0].rank != rank) continue;
          partial = std::fma(chosen.weights[at], y, partial);
        }
      }
      total = reduced ? total + to_float(setup_.wire, from_float(setup_.wire, partial)) : partial;
    }
    bits[column] = from_float(setup_.wire, total);
  }
}

std::uint64_t Workload::wrong_rows(const std::byte* out, std::uint64_t operation) const {
  std::uint64_t wrong = 0;
  std::array<std::uint32_t, period_elements> bits{};
  const std::size_t element = size_of(setup_.wire);
  // The library chooses the copy, so partial sums may be split otherwise: bits may differ by
  // rounding there, and only there.
  const bool loose = setup_.placement.replicated() && setup_.options.combine == Combine::reduced;
  for (std::uint32_t t = 0; t < tokens_; ++t) {
    expect(t, operation, bits);
    const std::byte* row = out + t * setup_.wire_row_bytes();
    bool same = true;
    for (std::uint32_t h = 0; h < setup_.hidden && same; ++h) {
      std::uint32_t got = 0;
      std::memcpy(&got, row + h * element, element);
      const std::uint32_t want = bits[h % period_elements];
      same = got == want;
      if (!same && loose) {
        const float a = to_float(setup_.wire, got);
        const float b = to_float(setup_.wire, want);
        same = std::fabs(a - b) <= 0.02F * std::fabs(b);
      }
    }
    if (!same) ++wrong;
  }
  return wrong;
}

ByteOutputs::ByteOutputs(const Setup& setup)
    : rows_{setup.byte_payload() ? kinds * setup.wire_row_bytes() : 0} {
  if (!setup.byte_payload()) return;
  alignas(64) std::byte pattern[256];
  for (std::uint32_t kind = 0; kind < kinds; ++kind) {
    write_pattern(setup.wire, kind * columns, pattern);
    kernels().fill(rows_.data() + kind * setup.wire_row_bytes(), pattern, setup.wire_row_bytes());
  }
}

}  // namespace m2n::perf
