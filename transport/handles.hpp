// Ids that are handed out for things in a table: an index and a generation, so that a stale id
// finds nothing instead of somebody else's entry. Owned by one transport instance, used by its
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace m2n::transport {

template <class Id, class T>
class HandleTable {
 public:
  static constexpr std::uint32_t index_bits = 20;
  static constexpr std::uint32_t max_entries = 1u << index_bits;

  // Nothing if the table is full.
  std::optional<Id> add(T value) {
    std::uint32_t index = 0;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else {
      if (entries_.size() >= max_entries) return std::nullopt;
      index = static_cast<std::uint32_t>(entries_.size());
      entries_.emplace_back();
    }
    entries_[index].value.emplace(std::move(value));
    return static_cast<Id>(entries_[index].generation << index_bits | index);
  }

  T* find(Id id) noexcept {
    const auto bits = static_cast<std::uint32_t>(id);
    const std::uint32_t index = bits & (max_entries - 1);
    if (index >= entries_.size()) return nullptr;
    Entry& entry = entries_[index];
    if (!entry.value || entry.generation != bits >> index_bits) return nullptr;
    return &*entry.value;
  }

  void drop(Id id) noexcept {
    if (find(id) == nullptr) return;
    const std::uint32_t index = static_cast<std::uint32_t>(id) & (max_entries - 1);
    entries_[index].value.reset();
    entries_[index].generation = (entries_[index].generation + 1) & generation_mask;
    free_.push_back(index);
  }

 private:
  static constexpr std::uint32_t generation_mask = (1u << (32 - index_bits)) - 1;
  struct Entry {
    std::optional<T> value;
    std::uint32_t generation = 0;
  };
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
};

}  // namespace m2n::transport
