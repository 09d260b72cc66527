// Reader of routing traces. Nothing in the file is believed: sizes are compared with what is there
// before memory is taken.
#include "perf/trace.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>

namespace m2n::perf {
namespace {

constexpr std::size_t fixed_bytes = 8 + 6 * 4;
constexpr std::size_t name_bytes = 16;

Status bad(const std::string& what) {
  return {Code::invalid, Scope::operation, "routing trace: " + what};
}

std::uint32_t u32_at(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= std::to_integer<std::uint32_t>(bytes[offset + i]) << (8 * i);
  }
  return value;
}

std::uint16_t u16_at(std::span<const std::byte> bytes, std::size_t offset) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(bytes[offset]) |
                                    std::to_integer<unsigned>(bytes[offset + 1]) << 8);
}

float half_to_float(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  float value = 0;
  if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    value = mantissa != 0 ? NAN : INFINITY;
  } else {
    value = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (half & 0x8000) != 0 ? -value : value;
}

Result<Trace> parse_header(std::span<const std::byte> bytes, std::uint32_t& kinds) {
  if (bytes.size() < fixed_bytes) {
    return bad("the file has " + std::to_string(bytes.size()) + " bytes, its header alone needs " +
               std::to_string(fixed_bytes));
  }
  if (std::memcmp(bytes.data(), "MOETRACE", 8) != 0) return bad("does not begin with MOETRACE");
  if (u32_at(bytes, 8) != 1) {
    return bad("version = " + std::to_string(u32_at(bytes, 8)) + ", allowed: 1");
  }
  Trace trace;
  trace.layers = u32_at(bytes, 12);
  trace.tokens = u32_at(bytes, 16);
  trace.top_k = u32_at(bytes, 20);
  trace.experts = u32_at(bytes, 24);
  kinds = u32_at(bytes, 28);
  struct Limit {
    const char* field;
    std::uint32_t value, most;
  };
  const std::array<Limit, 5> limits{{{"layers", trace.layers, 4096},
                                     {"tokens", trace.tokens, 1U << 28},
                                     {"top_k", trace.top_k, 128},
                                     {"experts", trace.experts, 65536},
                                     {"kinds", kinds, 256}}};
  for (const Limit& limit : limits) {
    if (limit.value < 1 || limit.value > limit.most) {
      return bad(std::string{limit.field} + " = " + std::to_string(limit.value) + ", allowed: 1.." +
                 std::to_string(limit.most));
    }
  }
  if (trace.top_k > trace.experts) return bad("top_k is larger than experts");
  return trace;
}

Status parse_entries(std::span<const std::byte> bytes, std::size_t offset, Trace& trace) {
  const std::size_t entries = std::size_t{trace.layers} * trace.tokens * trace.top_k;
  trace.expert.resize(entries);
  trace.weight.resize(entries);
  for (std::size_t i = 0; i < entries; ++i) {
    trace.expert[i] = u16_at(bytes, offset + 2 * i);
    trace.weight[i] = half_to_float(u16_at(bytes, offset + 2 * (entries + i)));
    if (trace.expert[i] >= trace.experts) {
      return bad("entry " + std::to_string(i) + " names expert " + std::to_string(trace.expert[i]) +
                 ", allowed: 0.." + std::to_string(trace.experts - 1));
    }
    if (!(trace.weight[i] >= 0 && trace.weight[i] <= 1)) {
      return bad("entry " + std::to_string(i) + " has a weight outside 0..1");
    }
  }
  return {};
}

}  // namespace

Result<Trace> parse_trace(std::span<const std::byte> bytes) {
  std::uint32_t kinds = 0;
  auto parsed = parse_header(bytes, kinds);
  if (!parsed) return parsed;
  Trace& trace = *parsed;
  const std::size_t names = fixed_bytes;
  const std::size_t kind = names + kinds * name_bytes;
  const std::size_t experts = kind + trace.tokens;
  // At most 2^12 * 2^28 * 2^7 * 2^2 bytes: fits.
  const std::size_t total =
      experts + std::size_t{trace.layers} * trace.tokens * trace.top_k * 2 * sizeof(std::uint16_t);
  if (bytes.size() != total) {
    return bad("the file has " + std::to_string(bytes.size()) + " bytes, its header asks for " +
               std::to_string(total));
  }
  for (std::size_t k = 0; k < kinds; ++k) {
    const char* text = reinterpret_cast<const char*>(bytes.data()) + names + k * name_bytes;
    trace.kinds.emplace_back(text, strnlen(text, name_bytes));
  }
  trace.kind.resize(trace.tokens);
  for (std::size_t t = 0; t < trace.tokens; ++t) {
    trace.kind[t] = std::to_integer<std::uint8_t>(bytes[kind + t]);
    if (trace.kind[t] >= kinds) return bad("token " + std::to_string(t) + " has an unknown kind");
  }
  if (Status status = parse_entries(bytes, experts, trace); !status) return status;
  return parsed;
}

Result<Trace> read_trace(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) return bad("cannot open " + path);
  std::vector<char> text{std::istreambuf_iterator<char>{file}, {}};
  if (file.bad()) return bad("cannot read " + path);
  auto trace = parse_trace(std::as_bytes(std::span{text}));
  if (!trace) {
    return Status{Code::invalid, Scope::operation, trace.status().text() + " (" + path + ")"};
  }
  return trace;
}

}  // namespace m2n::perf
