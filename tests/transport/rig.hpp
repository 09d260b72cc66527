// Two or more endpoints of one transport in one process, joined to each other: what the contract
// tests of the transports stand on.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/decorators.hpp"
#include "transport/shm.hpp"
#include "transport/transport.hpp"

namespace m2n::testing {

// A transport and what it is wrapped in: "", "faulty", "reorder" or "counted".
struct Kind {
  std::string transport;
  std::string decorator;
};
std::vector<Kind> all_kinds();
std::string name_of(const ::testing::TestParamInfo<Kind>& info);

// The faulty one delays every 5th put and answers every 7th with `again`.
std::unique_ptr<transport::Transport> make_transport(const Kind& kind,
                                                     const transport::Options& options);

constexpr std::size_t window_bytes = 1u << 18;
constexpr std::uint32_t words = 64;  // signals of a window, at its start, 64 bytes apart
constexpr std::size_t payload_offset = std::size_t{words} * 64;

// One rank: a window with signals that peers write, and memory to send from.
struct Endpoint {
  std::unique_ptr<transport::Transport> transport;
  transport::MemoryId window{};
  transport::MemoryId source{};
  std::uint32_t table = 0;
  transport::Blob window_blob;
  std::vector<transport::PeerId> peers;      // by rank, itself included
  std::vector<transport::RemoteId> windows;  // by rank
  std::uint64_t next_token = 1;

  std::byte* window_base() { return transport->local(window); }
  std::byte* source_base() { return transport->local(source); }
  const std::uint64_t* word(std::uint32_t index) {
    return reinterpret_cast<const std::uint64_t*>(window_base() + std::size_t{index} * 64);
  }
  transport::SignalRef signal(std::size_t rank, std::uint32_t index) {
    return {windows[rank], table, index};
  }
  // Puts, with a new token and after `again` with progress, until it is accepted or refused.
  Status put(std::size_t rank, std::span<const transport::Segment> segments, std::size_t offset,
             std::uint32_t word_index);
  // Calls progress and returns the first failure of a completion.
  Status pump();
};

// Makes an endpoint's memory; peers are joined with join().
Endpoint make_endpoint(std::unique_ptr<transport::Transport> transport);
// Connects everyone with everyone and imports every window.
void join(std::vector<Endpoint>& endpoints);
std::vector<Endpoint> make_endpoints(const Kind& kind, std::uint32_t count);

// Pumps `mover` until done() holds; false after 60 s.
bool wait_until(Endpoint* mover, const std::function<bool()>& done);
// Byte i of message `seed`.
std::byte pattern(std::uint64_t seed, std::size_t i);

}  // namespace m2n::testing
