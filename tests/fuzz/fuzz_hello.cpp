// What another rank publishes in the store about itself.
#include <algorithm>

#include "collectives/bootstrap.hpp"
#include "tests/fuzz/edited.hpp"

namespace {

using namespace m2n::collectives;

void check(std::span<const std::byte> bytes) {
  const m2n::Result<Hello> parsed = decode(bytes);
  if (!parsed) {
    m2n::fuzz::expect(!parsed.status().text().empty());
    return;
  }
  m2n::fuzz::expect(std::ranges::equal(encode(*parsed), bytes));
  Hello other;
  other.world_rank = parsed->world_rank + 1;
  other.world_size = parsed->world_size;
  other.field("ranks", 4);
  Meeting meeting;
  for (const Hello& hello : {other, *parsed, other}) meeting.read(hello);
  m2n::fuzz::expect(!meeting.over() || bool(meeting.outcome()) ||
                    !meeting.outcome().text().empty() || parsed->kind == Hello::Kind::gave_up);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check(std::as_bytes(std::span{data, size}));
  Hello hello;
  hello.world_rank = 1;
  hello.world_size = 2;
  hello.field("ranks", 4);
  hello.field("transport", "shm");
  hello.value("address", m2n::Bytes(24));
  check(m2n::fuzz::edited(encode(hello), {data, size}));
  return 0;
}
