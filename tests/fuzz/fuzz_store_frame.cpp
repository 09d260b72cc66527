// Frames of the TCP store, as a stranger, a client or a server might send them.
#include <algorithm>

#include "tests/fuzz/edited.hpp"
#include "transport/store_tcp_frame.hpp"

namespace {

using namespace m2n::transport;
using State = ParsedFrame::State;

void check(std::span<const std::byte> bytes) {
  for (const auto source : {FrameSource::stranger, FrameSource::client,
                            FrameSource::unproven_server, FrameSource::server}) {
    const ParsedFrame parsed = parse_frame(bytes, source);
    if (parsed.state == State::bad) m2n::fuzz::expect(parsed.reason[0] != '\0');
    if (parsed.state == State::incomplete) m2n::fuzz::expect(parsed.needed > bytes.size());
    if (parsed.state != State::complete) continue;
    const Frame& frame = parsed.frame;
    m2n::fuzz::expect(frame.bytes <= bytes.size());
    if (frame.type == FrameType::hello || frame.type == FrameType::challenge) {
      (void)decode_hello(frame.value);
    }
    m2n::Bytes again;
    append_frame(again, frame.type, frame.key, frame.value);
    m2n::fuzz::expect(std::ranges::equal(again, bytes.first(frame.bytes)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check(std::as_bytes(std::span{data, size}));
  m2n::Bytes valid;
  if (size % 2 == 0) {
    append_frame(valid, FrameType::hello, "", encode_hello({}));
  } else {
    append_frame(valid, FrameType::set, "group/key", std::vector<std::byte>(40));
  }
  check(m2n::fuzz::edited(std::move(valid), {data, size}));
  return 0;
}
