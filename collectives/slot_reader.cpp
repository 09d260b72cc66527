#include "collectives/slot_reader.hpp"

#include <algorithm>
#include <cstring>

namespace m2n::collectives {
namespace {

std::string text(std::size_t value) {
  return std::to_string(value);
}

// Where the parts of a body lie, once they are known to fit.
struct Body {
  const RowInfo* row = nullptr;
  const Entry* entry = nullptr;
  const std::byte* payload = nullptr;
  bool by_index = false;
};

std::string find_body(const std::byte* slot, const SlotHeader& header, const SlotLimits& limits,
                      Body& body) {
  const std::size_t rows = header.rows;
  const std::size_t entries = header.entries;
  const std::size_t offset = header.body_offset;
  body.by_index = (header.flags & flag::index_list) != 0;
  auto what = [&] { return text(rows) + " rows and " + text(entries) + " entries"; };
  if (rows > limits.max_rows || entries > limits.max_entries) {
    return what() + ", allowed: " + text(limits.max_rows) + " and " + text(limits.max_entries);
  }
  const std::size_t info = info_bytes(rows, entries);
  const std::size_t payload = body.by_index ? index_bytes(rows) : rows * limits.row_bytes;
  if (offset % 64 != 0 || offset < sizeof(SlotHeader) || offset > limits.slot_bytes ||
      info + payload > limits.slot_bytes - offset) {
    return what() + " at " + text(offset) + " do not fit the slot of " + text(limits.slot_bytes) +
           " bytes";
  }
  body.row = reinterpret_cast<const RowInfo*>(slot + offset);
  body.entry = reinterpret_cast<const Entry*>(body.row + rows + 1);
  body.payload = slot + offset + info;
  return {};
}

std::string check_placement(const SlotHeader& header, const PlacementTag& ours) {
  const PlacementTag theirs{header.placement_version, header.placement_hash};
  if (accepts(ours, theirs)) return {};
  const auto name = [](const PlacementTag& tag) {
    return "placement version " + text(tag.version) + " (hash " + text(tag.hash) + ")";
  };
  return name(theirs) + ", this channel has " + name(ours);
}

// Lists the distinct experts of one row; empty, or what is wrong with it.
std::string read_row(std::span<const Entry> of_row, std::uint32_t row, const SlotRoom& room,
                     std::size_t& count) {
  ++room.stamp;
  for (const Entry& entry : of_row) {
    const std::uint32_t bits = entry.expert_bits;  // one look
    const std::uint32_t expert = bits & ~Entry::repeat_bit;
    const bool repeated = bits != expert;
    if (expert >= room.stamps.size())
      return "local expert " + text(expert) + " of " + text(room.stamps.size());
    const bool known = room.stamps[expert] == room.stamp;
    if (repeated != known) {
      return (known ? "local expert " + text(expert) + " twice and not as a repeat"
                    : "a repeat of local expert " + text(expert) + ", which is not there");
    }
    if (repeated) continue;
    if (count == room.pairs.size()) return "more than " + text(room.pairs.size()) + " pairs";
    room.stamps[expert] = room.stamp;
    room.pairs[count++] = {row, expert};
  }
  return {};
}

// Checks the row information and lists the pairs.
std::string read_pairs(const SlotHeader& header, const SlotLimits& limits, const Body& body,
                       const SlotRoom& room, std::size_t& count) {
  const std::uint32_t entries = header.entries;
  if (body.row[0].first_entry != 0 || body.row[header.rows].first_entry != entries) {
    return "the header says " + text(header.rows) + " rows with " + text(entries) +
           " entries, the row information " + text(body.row[header.rows].first_entry) + " entries";
  }
  for (std::uint32_t row = 0; row < header.rows; ++row) {
    const std::uint32_t begin = body.row[row].first_entry;
    const std::uint32_t end = body.row[row + 1].first_entry;
    if (end <= begin || end > entries || end - begin > limits.max_row_entries) {
      return "row " + text(row) + " has entries " + text(begin) + " to " + text(end);
    }
    if (body.row[row].token >= limits.max_rows) {
      return "row " + text(row) + " is token " + text(body.row[row].token) + " of " +
             text(limits.max_rows);
    }
    std::string wrong = read_row({body.entry + begin, end - begin}, row, room, count);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string check_index(std::span<const std::uint32_t> index, std::size_t rows) {
  const auto wrong =
      std::find_if(index.begin(), index.end(), [&](std::uint32_t row) { return row >= rows; });
  return wrong == index.end() ? std::string{} : "arena row " + text(*wrong) + " of " + text(rows);
}

}  // namespace

std::string read_slot(const std::byte* slot, const SlotLimits& limits, const SlotRoom& room,
                      BatchSource& source) {
  // One look: what is checked is what is used.
  SlotHeader header;
  std::memcpy(&header.operation, slot + put_offset, sizeof header - put_offset);
  source.operation = header.operation;
  source.layer = header.layer;
  source.micro_batch = header.micro_batch;
  if (std::string wrong = check_placement(header, limits.placement); !wrong.empty()) return wrong;
  if (header.rows == 0) return header.entries == 0 ? std::string{} : "entries without rows";
  Body body;
  if (std::string wrong = find_body(slot, header, limits, body); !wrong.empty()) return wrong;
  std::size_t count = 0;
  if (std::string wrong = read_pairs(header, limits, body, room, count); !wrong.empty()) {
    return wrong;
  }
  if (body.by_index) {
    if (room.index.size() < header.rows) return "an index, where there is no arena";
    const std::span<std::uint32_t> index = room.index.first(header.rows);
    std::memcpy(index.data(), body.payload, index.size_bytes());
    if (std::string wrong = check_index(index, limits.arena_rows); !wrong.empty()) return wrong;
    source.index = index.data();
  }
  source.base = body.by_index ? limits.arena : body.payload;
  source.rows = header.rows;
  source.row_stride_bytes = limits.row_bytes;
  source.row = {body.row, std::size_t{header.rows} + 1};
  source.entries = {body.entry, header.entries};
  source.pairs = room.pairs.first(count);
  return {};
}

}  // namespace m2n::collectives
