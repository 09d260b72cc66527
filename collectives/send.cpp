// One round on its way to one expert rank: header, row information, and rows or where they lie.
#include <algorithm>
#include <cstring>

#include "collectives/attention_end.hpp"
#include "collectives/hooks.hpp"
#include "collectives/slot.hpp"
#include "collectives/wait.hpp"

namespace m2n::collectives {

void AttentionEnd::send(Operation& operation, std::uint32_t peer, const Dispatch& arguments) {
  Sending sending;
  PairLink& link = *links_[peer];
  sending.link = &link;
  const RankRoute& route = operation.plan.rank(peer);
  const std::uint64_t round = sending.round = operation.peers[peer].round = ledgers_[peer].issue();
  const std::size_t info = info_bytes(route.rows, route.entries);
  const bool by_index = operation.block != ArenaRing::none;
  const std::size_t body =
      info + (by_index ? index_bytes(route.rows) : route.rows * link.out().row_bytes);
  at({HookPoint::pre_send, context_.group->config.world_rank, peer, round});
  std::byte* slot = link.begin(round);
  SlotHeader& header = sending.header;
  header.operation = operation.number;
  header.layer = operation.layer;
  header.micro_batch = operation.micro_batch;
  header.placement_version = context_.config.placement.version();
  header.placement_hash = static_cast<std::uint16_t>(context_.config.placement.hash());
  header.status = ReplyStatus::ok;
  header.flags = by_index ? flag::index_list : std::uint8_t{0};
  header.rows = route.rows;
  header.entries = route.entries;
  header.body_offset = link.place(round, body);
  if (route.rows != 0) {
    std::byte* to = slot + header.body_offset;
    const std::span<const RowInfo> rows = operation.plan.row_info(peer);
    std::memcpy(to, rows.data(), rows.size_bytes());
    std::memcpy(to + rows.size_bytes(), operation.plan.entries(peer).data(),
                route.entries * sizeof(Entry));
    sending.rows = rows.first(route.rows);
    sending.to = to + info;
    sending.streaming = operation.streaming;
    if (by_index) {
      write_index(to + info, operation, sending.rows);
    } else {
      push_rows(peer, sending, arguments);
    }
  }
  link.write_header(round, header);
  at({HookPoint::header_written, context_.group->config.world_rank, peer, round, slot,
      link.out().slot_bytes});
  link.finish(round, body);
  ++peer_statistics_[peer].rounds;
  statistics_.wire_bytes += sizeof(SlotHeader) + body;
}

// Piece after piece, so that a reader that wants to may begin. Now and then one row in the middle
// is timed; the first one would pay for cold translations, too.
void AttentionEnd::push_rows(std::uint32_t peer, Sending& sending, const Dispatch& arguments) {
  PairLink& link = *sending.link;
  StoreChoice& choice = store_choices_[peer];
  const std::size_t rows = sending.rows.size();
  const std::size_t row_lines = link.out().row_bytes / 64;
  const std::size_t piece =
      std::max<std::size_t>(link.piece_lines(rows * row_lines) / row_lines, 1);
  const bool measured =
      link.mapped() && !sending.streaming && context_.row_bytes >= StoreChoice::least_sample_bytes;
  sending.streaming |=
      measured && (choice.streaming() || test_streaming.load(std::memory_order_relaxed));
  if (sending.streaming) sending.header.flags |= flag::streaming;
  const std::size_t sample = measured && choice.sample_due() ? rows / 2 : rows;
  for (std::size_t done = 0; done < rows;) {
    std::size_t end = std::min(rows, (done / piece + 1) * piece);
    if (done == sample) {
      end = done + 1;
      choice.sample(context_.row_bytes, time_row(sending, done, arguments));
    } else {
      if (done < sample) end = std::min(end, sample);
      copy_rows(sending.to + done * link.out().row_bytes, sending.rows.subspan(done, end - done),
                arguments, sending.streaming);
    }
    if (sending.streaming) transport::row_kernels().fence_streaming();
    done = end;
    if (done == rows || done % piece != 0) continue;
    link.write_header(sending.round, sending.header);
    link.tell(sending.round, static_cast<std::uint32_t>(done * row_lines));
    at({HookPoint::piece_told, context_.group->config.world_rank, peer, sending.round});
  }
}

// What one row costs with plain stores until they are done, in ns.
std::uint64_t AttentionEnd::time_row(const Sending& sending, std::size_t row,
                                     const Dispatch& arguments) const {
  transport::row_kernels().fence_streaming();
  const Clock::time_point begin = Clock::now();
  copy_rows(sending.to + row * sending.link->out().row_bytes, sending.rows.subspan(row, 1),
            arguments);
  transport::row_kernels().fence_streaming();
  return static_cast<std::uint64_t>((Clock::now() - begin).count());
}

void AttentionEnd::copy_rows(std::byte* to, std::span<const RowInfo> rows,
                             const Dispatch& arguments, bool streaming) const {
  const transport::RowKernels& kernels = transport::row_kernels();
  const transport::CopyFunction copy = streaming ? kernels.copy_streaming : kernels.copy;
  const std::size_t stride = context_.row_format.stride_bytes;
  for (std::size_t array = 0; array < context_.row_sizes.size(); ++array) {
    const ConstRows& from = array == 0 ? arguments.x : arguments.extra[array - 1];
    const std::size_t bytes = context_.row_sizes[array];
    const std::size_t from_stride = from.row_stride_bytes != 0 ? from.row_stride_bytes : bytes;
    const auto* base = static_cast<const std::byte*>(from.base);
    std::byte* target = to + context_.row_offsets[array];
    for (const RowInfo& row : rows) {
      copy(target, base + row.token * from_stride, bytes);
      target += stride;
    }
  }
}

}  // namespace m2n::collectives
