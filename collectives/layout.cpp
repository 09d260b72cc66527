#include "collectives/layout.hpp"

#include <algorithm>
#include <string>

#include "collectives/checked.hpp"
#include "collectives/control.hpp"
#include "collectives/slot.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {
namespace {

Status too_large(const char* what) {
  return transport::refuse({"channel_sizes", what, "more than 2^64 bytes", "what std::size_t holds",
                            -1, "ChannelConfig::max_tokens, hidden or depth"},
                           Code::exhausted);
}

// `payload_bytes` = what follows the row information in the largest round.
Result<WindowLayout> window(const ChannelConfig& config, WindowLayout layout, std::uint32_t peers,
                            std::size_t payload_bytes) {
  Checked size;
  std::size_t info = size.multiply(size.add(layout.max_rows, 1), sizeof(RowInfo));
  info = size.add(info, size.multiply(layout.max_entries, sizeof(Entry)));
  layout.max_body_bytes = size.add(size.align(info, 64), payload_bytes);
  const std::size_t rotation = rotation_bytes / (std::size_t{std::max(peers, 1u)} * config.depth);
  layout.depth = config.depth;
  layout.control_bytes = sizeof(ControlBlock);
  layout.slot_bytes =
      size.align(size.add(sizeof(SlotHeader), std::max(layout.max_body_bytes, rotation)), 4096);
  size.add(layout.control_bytes, size.multiply(layout.slot_bytes, config.depth));
  if (size.overflow()) return too_large("window");
  return layout;
}

}  // namespace

Result<RowGeometry> row_geometry(const ChannelConfig& config) {
  Checked size;
  RowGeometry geometry;
  std::size_t end = 0;
  auto add = [&](std::size_t bytes) {
    const std::size_t offset = size.align(end, 16);
    geometry.offsets_bytes.push_back(offset);
    geometry.sizes_bytes.push_back(bytes);
    end = size.add(offset, bytes);
  };
  add(size.multiply(config.hidden, size_of(config.payload)));
  for (std::uint32_t bytes : config.extra_row_bytes) add(bytes);
  geometry.stride_bytes = size.align(end, 64);
  if (size.overflow()) return too_large("row");
  return geometry;
}

Result<WindowLayout> dispatch_window(const ChannelConfig& config, std::uint32_t peers) {
  Result<RowGeometry> geometry = row_geometry(config);
  if (!geometry) return geometry.status();
  Checked size;
  WindowLayout layout;
  layout.row_bytes = geometry->stride_bytes;
  layout.max_rows = config.max_tokens;
  layout.max_entries =
      size.multiply(size.multiply(config.max_tokens, config.top_k), config.placement.max_parts());
  // The rows of a shared exchange stay in the sender's arena.
  const std::size_t payload =
      config.exchange == ExchangeKind::shared
          ? size.align(size.multiply(layout.max_rows, sizeof(std::uint32_t)), 64)
          : size.multiply(layout.max_rows, layout.row_bytes);
  if (size.overflow()) return too_large("rows");
  return window(config, layout, peers, payload);
}

Result<WindowLayout> reply_window(const ChannelConfig& config, std::uint32_t peers,
                                  std::uint32_t local_experts) {
  Checked size;
  WindowLayout layout;
  layout.row_bytes = size.align(size.multiply(config.hidden, size_of(config.wire)), 64);
  layout.max_rows = config.max_tokens;
  if (config.combine == Combine::per_expert) {
    const std::size_t per_token = std::min<std::size_t>(
        size.multiply(config.top_k, config.placement.max_parts()), local_experts);
    layout.max_rows = size.multiply(config.max_tokens, per_token);
  }
  const std::size_t payload = size.multiply(layout.max_rows, layout.row_bytes);
  if (size.overflow()) return too_large("reply");
  return window(config, layout, peers, payload);
}

Result<GroupedLayout> grouped_layout(const ChannelConfig& config, std::uint32_t attention_ranks,
                                     std::uint32_t local_experts) {
  Result<RowGeometry> geometry = row_geometry(config);
  if (!geometry) return geometry.status();
  Checked size;
  GroupedLayout layout;
  const std::size_t tokens = size.multiply(config.max_tokens, attention_ranks);
  if (config.layout == Layout::grouped) {
    layout.rows = size.multiply(local_experts, config.capacity != 0 ? config.capacity : tokens);
  } else {
    const std::size_t per_token = std::min<std::size_t>(
        size.multiply(config.top_k, config.placement.max_parts()), local_experts);
    const std::size_t padding =
        size.multiply(local_experts, std::max(config.packed_alignment, 1u) - 1);
    layout.rows = size.add(size.multiply(tokens, per_token), padding);
  }
  layout.bytes = size.multiply(layout.rows, geometry->stride_bytes);
  if (size.overflow()) return too_large("grouped batch");
  // Rows of a grouped batch, and rows of one expert in it, are counted with 32 bits.
  if (layout.rows <= 0xffff'ffffu) return layout;
  return transport::refuse(
      {"channel_sizes", "rows of a grouped batch",
       std::to_string(layout.rows) + " for " + std::to_string(local_experts) +
           " local experts and " + std::to_string(attention_ranks) + " attention ranks",
       "at most 4294967295", -1, "ChannelConfig::capacity, max_tokens or packed_alignment"});
}

}  // namespace m2n::collectives
