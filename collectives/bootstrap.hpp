// How ranks tell each other who they are before any transport is up: every rank publishes one Hello
// per stage in the store and reads all others. Comparing them is pure. Set-up only, blocking.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "m2n/status.hpp"
#include "m2n/store.hpp"

namespace m2n::collectives {

// What a rank says at one stage. `fields` must be equal on all ranks; `refusal` tells why this rank
// cannot go on, so that the others need not wait for it; `values` is opaque here.
struct Hello {
  std::uint32_t world_rank = 0;
  std::string refusal;
  std::vector<std::pair<std::string, std::string>> fields;
  std::vector<std::pair<std::string, Bytes>> values;

  void field(std::string name, std::string value) {
    fields.emplace_back(std::move(name), std::move(value));
  }
  void field(std::string name, std::uint64_t value) {
    field(std::move(name), std::to_string(value));
  }
  void value(std::string name, Bytes bytes) {
    values.emplace_back(std::move(name), std::move(bytes));
  }
  // The value of that name, or null.
  const Bytes* find(std::string_view name) const noexcept;
};

Bytes encode(const Hello& hello);
// `invalid` for anything that encode() did not write, or another wire version.
Result<Hello> decode(std::span<const std::byte> bytes);

// ok if all ranks agree; else one text, the same on every rank, that names the first field that
// differs, the ranks that differ from the majority, and both values.
Status compare(std::span<const Hello> hellos);

// One stage among world ranks 0..world_size-1.
struct Stage {
  Store* store = nullptr;
  std::string key;  // prefix, unique per stage
  std::uint32_t world_size = 0;
  std::chrono::nanoseconds timeout{0};  // 0 = never
};

// Publishes `mine` and returns all, by world rank. A refusal of any rank, or a difference, fails on
// all.
Result<std::vector<Hello>> exchange(const Stage& stage, const Hello& mine);

// Publishes a hello that carries a refusal, and waits for nobody.
void announce_refusal(const Stage& stage, const Hello& mine);

// Random bytes as hex, for job and window nonces.
std::string random_hex(std::size_t bytes);

}  // namespace m2n::collectives
