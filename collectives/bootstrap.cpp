#include "collectives/bootstrap.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "m2n/version.hpp"

namespace m2n::collectives {
namespace {

constexpr std::uint32_t magic = 0x4e32'4d68;  // "hM2N"
constexpr std::uint32_t byte_order = 0x0102'0304;

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

Status malformed(const char* what) {
  return {Code::invalid, Scope::group,
          std::string{"bootstrap: a rank's hello is malformed: "} + what};
}

// The value that most ranks have; ties go to the lowest rank that has one of them.
const std::string& majority(std::span<const Hello> hellos, std::size_t field) {
  const std::string* best = nullptr;
  std::ptrdiff_t most = 0;
  for (const Hello& hello : hellos) {
    const std::string& value = hello.fields[field].second;
    const auto count = std::count_if(hellos.begin(), hellos.end(), [&](const Hello& other) {
      return other.fields[field].second == value;
    });
    if (count > most) {
      most = count;
      best = &value;
    }
  }
  return *best;
}

std::string differing(std::span<const Hello> hellos, std::size_t field, const std::string& common) {
  std::string text;
  for (const Hello& hello : hellos) {
    const auto& [name, value] = hello.fields[field];
    if (value == common) continue;
    if (!text.empty()) text += ", ";
    text.append("rank ").append(std::to_string(hello.world_rank)).append(": ");
    text.append(name).append(" = ").append(value);
  }
  return text + ", others: " + common;
}

Result<Hello> read_one(const Stage& stage, std::uint32_t rank,
                       std::chrono::steady_clock::time_point end) {
  using std::chrono::nanoseconds;
  const nanoseconds left = stage.timeout.count() == 0 ? nanoseconds{std::chrono::hours{24 * 365}}
                                                      : end - std::chrono::steady_clock::now();
  const std::string key = stage.key + "/" + std::to_string(rank);
  Result<Bytes> bytes = stage.store->wait(key, std::max(left, nanoseconds{1}));
  if (bytes) return decode(*bytes);
  if (bytes.code() != Code::timeout) return bytes.status();
  return Status{Code::timeout, Scope::group,
                "start-up: rank " + std::to_string(rank) + " has not come to stage \"" + stage.key +
                    "\" in time (see GroupConfig::start_timeout or M2N_START_TIMEOUT_MS)",
                static_cast<std::int32_t>(rank)};
}

}  // namespace

const Bytes* Hello::find(std::string_view name) const noexcept {
  for (const auto& [key, bytes] : values) {
    if (key == name) return &bytes;
  }
  return nullptr;
}

Bytes encode(const Hello& hello) {
  Writer writer;
  writer.number(magic);
  writer.number(byte_order);
  writer.number(wire_version);
  writer.number(hello.world_rank);
  writer.text(hello.refusal);
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
  if (const std::uint32_t version = reader.number(); version != wire_version) {
    return Status{Code::invalid, Scope::group,
                  "bootstrap: a rank speaks wire version " + std::to_string(version) +
                      ", this one " + std::to_string(wire_version)};
  }
  Hello hello;
  hello.world_rank = reader.number();
  hello.refusal = reader.text();
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
  return hello;
}

Status compare(std::span<const Hello> hellos) {
  for (const Hello& hello : hellos) {
    if (hello.refusal.empty()) continue;
    return {Code::invalid, Scope::group,
            "rank " + std::to_string(hello.world_rank) + " refused: " + hello.refusal,
            static_cast<std::int32_t>(hello.world_rank)};
  }
  const std::size_t count = hellos.front().fields.size();
  for (const Hello& hello : hellos) {
    if (hello.fields.size() != count) return malformed("another number of fields");
  }
  std::string text;
  for (std::size_t field = 0; field < count; ++field) {
    const std::string& common = majority(hellos, field);
    const bool same = std::all_of(hellos.begin(), hellos.end(), [&](const Hello& hello) {
      return hello.fields[field].second == common;
    });
    if (!same) text += (text.empty() ? "" : "; ") + differing(hellos, field, common);
  }
  if (text.empty()) return {};
  return {Code::invalid, Scope::group, "configuration differs between ranks: " + text};
}

Result<std::vector<Hello>> exchange(const Stage& stage, const Hello& mine) {
  const auto end = std::chrono::steady_clock::now() + stage.timeout;
  const std::string key = stage.key + "/" + std::to_string(mine.world_rank);
  if (Status status = stage.store->set(key, encode(mine)); !status) return status;
  std::vector<Hello> all;
  for (std::uint32_t rank = 0; rank < stage.world_size; ++rank) {
    Result<Hello> hello = read_one(stage, rank, end);
    if (!hello) return hello.status();
    if (hello->world_rank != rank) return malformed("another rank's");
    if (!hello->refusal.empty()) return compare({&*hello, 1});
    all.push_back(std::move(*hello));
  }
  if (Status status = compare(all); !status) return status;
  return all;
}

void announce_refusal(const Stage& stage, const Hello& mine) {
  const std::string key = stage.key + "/" + std::to_string(mine.world_rank);
  // This rank reports its own refusal; one that the store does not take changes nothing about that.
  static_cast<void>(stage.store->set(key, encode(mine)));
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
