// m2n_rounds: rounds of one rank with both roles in one thread, for profilers. Nobody waits for
// anybody, so instructions are those of the library and of the rows themselves.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "m2n/m2n.hpp"

namespace m2n::perf {
namespace {

constexpr std::uint32_t hidden = 7168;

Status round(Channel& channel, const Dispatch& call, std::vector<std::byte>& out) {
  auto ticket = channel.dispatch(call);
  if (!ticket) return ticket.status();
  auto batch = channel.try_receive();
  if (!batch) return batch.status();
  const BatchSource& source = batch->sources()[0];
  const Outputs outputs{source.base, source.row_stride_bytes, source.index};
  if (Status sent = channel.reply(*batch, std::span{&outputs, 1}); !sent) return sent;
  return channel.combine(*ticket, {out.data()});
}

Status run(std::uint32_t tokens, std::uint32_t rounds) {
  GroupConfig config = GroupConfig::both(1, 0);
  config.transport = "inproc";
  auto group = Group::create(config, make_inproc_store());
  if (!group) return group.status();
  ChannelConfig shape;
  shape.hidden = hidden;
  shape.max_tokens = tokens;
  auto channel = group->open(shape);
  if (!channel) return channel.status();
  const std::vector<std::uint16_t> x(std::size_t{tokens} * hidden, 0x3f80);  // 1 in bf16
  const std::vector<std::int32_t> ids(tokens, 0);
  std::vector<std::byte> out(x.size() * 2);
  Dispatch call;
  call.tokens = tokens;
  call.x = {x.data()};
  call.ids = ids.data();
  for (std::uint32_t i = 0; i < rounds; ++i) {
    if (Status done = round(*channel, call, out); !done) return done;
  }
  if (std::memcmp(x.data(), out.data(), out.size()) != 0)
    return {Code::system, Scope::operation, "m2n_rounds: wrong rows"};
  if (Status closed = channel->close(); !closed) return closed;
  return group->close();
}

bool number(std::string_view text, std::uint32_t& value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc{} && end.ptr == text.data() + text.size() && value != 0;
}

}  // namespace
}  // namespace m2n::perf

int main(int argc, char** argv) {
  std::uint32_t tokens = 0;
  std::uint32_t rounds = 0;
  if (argc != 3 || !m2n::perf::number(argv[1], tokens) || !m2n::perf::number(argv[2], rounds)) {
    std::fprintf(stderr, "usage: m2n_rounds TOKENS ROUNDS\n");
    return 2;
  }
  const m2n::Status status = m2n::perf::run(tokens, rounds);
  if (!status) std::fprintf(stderr, "m2n_rounds: %s\n", status.text().c_str());
  return status ? 0 : 1;
}
