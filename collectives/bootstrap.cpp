#include "collectives/bootstrap.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace m2n::collectives {
namespace {

constexpr std::uint32_t magic = 0x4e32'4d68;  // "hM2N"
constexpr std::uint32_t byte_order = 0x0102'0304;
constexpr std::uint32_t most_ranks = 131072;

class Writer {
 public:
  void number(std::uint32_t value) { append(&value, sizeof value); }
  void text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    append(text.data(), text.size());
  }
  Bytes take() { return std::move(bytes_); }

 private:
  void append(const void* data, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  Bytes bytes_;
};

// Reads what Writer wrote; any overrun makes it bad for good.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_{bytes} {}
  std::uint32_t number() {
    std::uint32_t value = 0;
    if (take(sizeof value)) std::memcpy(&value, last_.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> bytes() {
    return take(number()) ? last_ : std::span<const std::byte>{};
  }
  std::string text() {
    const auto from = bytes();
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  bool good() const { return good_; }
  bool at_end() const { return good_ && bytes_.empty(); }

 private:
  bool take(std::size_t size) {
    good_ = good_ && size <= bytes_.size();
    if (!good_) return false;
    last_ = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return true;
  }
  std::span<const std::byte> bytes_;
  std::span<const std::byte> last_;
  bool good_ = true;
};

Status malformed(const std::string& what) {
  return {Code::invalid, Scope::group, "bootstrap: a rank's hello is malformed: " + what};
}

std::string rank_text(std::uint32_t world_rank) {
  return "rank " + std::to_string(world_rank);
}

std::string range_text(const VersionRange& range) {
  return range.min == range.max
             ? "wire version " + std::to_string(range.min)
             : "wire versions " + std::to_string(range.min) + " to " + std::to_string(range.max);
}

}  // namespace

VersionRange versions_of(std::uint32_t world_rank) noexcept {
  const auto test = test_versions.load(std::memory_order_relaxed);
  return test == nullptr ? VersionRange{} : test(world_rank);
}

const Bytes* Hello::find(std::string_view name) const noexcept {
  for (const auto& [key, bytes] : values) {
    if (key == name) return &bytes;
  }
  return nullptr;
}

std::string Hello::find_text(std::string_view name) const {
  const Bytes* bytes = find(name);
  if (bytes == nullptr) return {};
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

Bytes bytes_of(std::string_view text) {
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  return {from, from + text.size()};
}

Bytes encode(const Hello& hello) {
  Writer writer;
  writer.number(magic);
  writer.number(byte_order);
  writer.number(hello.versions.min);
  writer.number(hello.versions.max);
  writer.number(static_cast<std::uint32_t>(hello.kind));
  writer.number(hello.world_rank);
  writer.number(hello.world_size);
  writer.number(hello.stage);
  writer.number(static_cast<std::uint32_t>(hello.peer));
  writer.text(hello.text);
  writer.number(static_cast<std::uint32_t>(hello.fields.size()));
  for (const auto& [name, value] : hello.fields) {
    writer.text(name);
    writer.text(value);
  }
  writer.number(static_cast<std::uint32_t>(hello.values.size()));
  for (const auto& [name, bytes] : hello.values) {
    writer.text(name);
    writer.text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  return writer.take();
}

Result<Hello> decode(std::span<const std::byte> bytes) {
  Reader reader{bytes};
  if (reader.number() != magic) return malformed("not one of m2n");
  if (reader.number() != byte_order) return malformed("another byte order");
  Hello hello;
  hello.versions.min = reader.number();
  hello.versions.max = reader.number();
  const std::uint32_t kind = reader.number();
  hello.kind = static_cast<Hello::Kind>(kind);
  hello.world_rank = reader.number();
  hello.world_size = reader.number();
  hello.stage = reader.number();
  hello.peer = static_cast<std::int32_t>(reader.number());
  hello.text = reader.text();
  for (std::uint32_t n = reader.number(); n > 0 && reader.good(); --n) {
    std::string name = reader.text();
    hello.field(std::move(name), reader.text());
  }
  for (std::uint32_t n = reader.number(); n > 0 && reader.good(); --n) {
    std::string name = reader.text();
    const auto value = reader.bytes();
    hello.value(std::move(name), Bytes(value.begin(), value.end()));
  }
  if (!reader.at_end()) return malformed("lengths do not fit");
  if (kind > static_cast<std::uint32_t>(Hello::Kind::gave_up) ||
      hello.versions.min > hello.versions.max || hello.stage >= Meeting::stages) {
    return malformed("a number that no rank writes");
  }
  return hello;
}

void Meeting::read(const Result<Hello>& entry) {
  if (over_) return;
  Status status = entry ? judge(*entry) : entry.status();
  over_ = !status || complete(stages - 1);
  outcome_ = std::move(status);
}

Status Meeting::judge(const Hello& hello) {
  if (hello.kind == Hello::Kind::refused) {
    return {Code::invalid, Scope::group, rank_text(hello.world_rank) + " refused: " + hello.text,
            static_cast<std::int32_t>(hello.world_rank)};
  }
  if (hello.kind == Hello::Kind::gave_up) {
    return {Code::timeout, Scope::group, hello.text, hello.peer};
  }
  if (hello.world_rank >= hello.world_size || hello.world_size > most_ranks) {
    return malformed(rank_text(hello.world_rank) + " of " + std::to_string(hello.world_size));
  }
  if (Status status = agree_version(hello); !status) return status;
  if (Status status = check_twice(hello); !status) return status;
  if (Status status = compare(hello); !status) return status;
  if (hello.stage > 0 && (!complete(hello.stage - 1) || hello.world_size != world_size_)) {
    return malformed(rank_text(hello.world_rank) + " is ready before all have come");
  }
  world_size_ = hello.world_size;
  there_[hello.stage].emplace(hello.world_rank, hello);
  return {};
}

Status Meeting::agree_version(const Hello& hello) {
  const VersionRange& range = hello.versions;
  if (range.min > common_.max || range.max < common_.min) {
    const std::uint32_t other = range.min > common_.max ? lowest_max_rank_ : highest_min_rank_;
    return {Code::invalid, Scope::group,
            "start-up: " + rank_text(hello.world_rank) + " speaks " + range_text(range) + ", " +
                rank_text(other) + " speaks " + range_text(there_[0].at(other).versions) +
                ": none in common; use the same release of m2n on all ranks",
            static_cast<std::int32_t>(hello.world_rank)};
  }
  if (range.min > common_.min) {
    common_.min = range.min;
    highest_min_rank_ = hello.world_rank;
  }
  if (range.max < common_.max) {
    common_.max = range.max;
    lowest_max_rank_ = hello.world_rank;
  }
  return {};
}

Status Meeting::check_twice(const Hello& hello) const {
  const auto found = there_[hello.stage].find(hello.world_rank);
  if (found == there_[hello.stage].end()) return {};
  std::string text = "start-up: " + rank_text(hello.world_rank) + " is there twice";
  const std::string first = found->second.find_text("process");
  const std::string second = hello.find_text("process");
  if (!first.empty()) text += ": process " + first + " and process " + second;
  return {Code::invalid, Scope::group,
          text +
              "; every rank needs a number of its own (see GroupConfig::world_rank), and one "
              "that is started again must wait until the others have given up",
          static_cast<std::int32_t>(hello.world_rank)};
}

// Names every field in which the newcomer differs from those that have come before.
Status Meeting::compare(const Hello& hello) {
  auto& said = said_[hello.stage];
  std::string text;
  auto one = [&](const std::string& name, const std::string& value) {
    Said& before = said.try_emplace(name, Said{value, hello.world_rank, 0}).first->second;
    if (before.value != value) {
      text += text.empty() ? "" : "; ";
      text += rank_text(hello.world_rank) + ": " + name + " = " + value + ", ";
      text += (before.count > 1 ? "others" : rank_text(before.world_rank)) + ": " + before.value;
    }
    ++before.count;
  };
  one("world_size", std::to_string(hello.world_size));
  for (const auto& [name, value] : hello.fields) one(name, value);
  if (!text.empty()) {
    return {Code::invalid, Scope::group, "configuration differs between ranks: " + text,
            static_cast<std::int32_t>(hello.world_rank)};
  }
  // Another release may know further fields; it must care for them itself.
  const auto& there = there_[hello.stage];
  if (!there.empty() && there.begin()->second.versions == hello.versions &&
      there.begin()->second.fields.size() != hello.fields.size()) {
    return malformed("another number of fields");
  }
  return {};
}

std::vector<Hello> Meeting::hellos(std::uint32_t stage) const {
  std::vector<Hello> all;
  for (const auto& [rank, hello] : there_[stage]) all.push_back(hello);
  return all;
}

std::vector<std::uint32_t> Meeting::missing(std::uint32_t stage, std::size_t most) const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < world_size_ && ranks.size() < most; ++rank) {
    if (there_[stage].count(rank) == 0) ranks.push_back(rank);
  }
  return ranks;
}

std::string random_hex(std::size_t bytes) {
  std::random_device device;
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    constexpr const char* digits = "0123456789abcdef";
    const unsigned value = device();
    text += digits[value & 15];
    text += digits[value >> 4 & 15];
  }
  return text;
}

}  // namespace m2n::collectives
