// Routing files of m2n_perf.
#include "perf/trace.hpp"
#include "tests/fuzz/edited.hpp"

namespace {

void check(std::span<const std::byte> bytes) {
  const m2n::Result<m2n::perf::Trace> parsed = m2n::perf::parse_trace(bytes);
  if (!parsed) {
    m2n::fuzz::expect(!parsed.status().text().empty());
    return;
  }
  const m2n::perf::Trace& trace = *parsed;
  const std::size_t entries = std::size_t{trace.layers} * trace.tokens * trace.top_k;
  m2n::fuzz::expect(trace.expert.size() == entries && trace.weight.size() == entries);
  for (const std::uint16_t expert : trace.expert) m2n::fuzz::expect(expert < trace.experts);
  for (const std::uint8_t kind : trace.kind) m2n::fuzz::expect(kind < trace.kinds.size());
}

// A trace of 1 layer, 2 tokens, top 2 of 4 experts, and one kind of text.
std::vector<std::byte> valid_trace() {
  std::vector<std::byte> bytes;
  for (const char c : {'M', 'O', 'E', 'T', 'R', 'A', 'C', 'E'}) {
    bytes.push_back(static_cast<std::byte>(c));
  }
  for (const int value : {1, 1, 2, 2, 4, 1}) {
    bytes.push_back(static_cast<std::byte>(value));
    bytes.resize(bytes.size() + 3);
  }
  bytes.push_back(std::byte{'x'});
  bytes.resize(bytes.size() + 15 + 2 + 8 + 8);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check(std::as_bytes(std::span{data, size}));
  check(m2n::fuzz::edited(valid_trace(), {data, size}));
  return 0;
}
