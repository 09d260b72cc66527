// Little-endian fields in a blob. The reader is bounds-checked and sticky: after the first field
// that does not fit, ok() is false and every value is 0. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "transport/transport.hpp"

namespace m2n::transport {

class BlobWriter {
 public:
  void u32(std::uint32_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void text(std::string_view value) {
    u32(static_cast<std::uint32_t>(value.size()));
    for (const char c : value) blob_.push_back(static_cast<std::byte>(c));
  }
  Blob take() { return std::move(blob_); }

 private:
  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      blob_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
  }
  Blob blob_;
};

class BlobReader {
 public:
  explicit BlobReader(std::span<const std::byte> blob) : rest_{blob} {}
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::string text(std::size_t max_bytes) {
    const std::size_t size = u32();
    if (!ok_ || size > max_bytes || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    std::string value;
    for (const std::byte b : rest_.first(size)) value.push_back(static_cast<char>(b));
    rest_ = rest_.subspan(size);
    return value;
  }
  bool ok() const noexcept { return ok_; }
  // All fields were there and nothing is left over.
  bool complete() const noexcept { return ok_ && rest_.empty(); }
  std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::uint64_t number(std::size_t bytes) {
    if (!ok_ || rest_.size() < bytes) {
      ok_ = false;
      return 0;
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= static_cast<std::uint64_t>(rest_[i]) << (8 * i);
    }
    rest_ = rest_.subspan(bytes);
    return value;
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace m2n::transport
