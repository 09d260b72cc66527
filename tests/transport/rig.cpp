#include "tests/transport/rig.hpp"

#include <array>
#include <thread>
#include <utility>

namespace m2n::testing {

using namespace m2n::transport;

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (const char* transport : {"inproc", "shm"}) {
    for (const char* decorator : {"", "faulty", "reorder", "counted"}) {
      kinds.push_back({transport, decorator});
    }
  }
  return kinds;
}

std::string name_of(const ::testing::TestParamInfo<Kind>& info) {
  return info.param.transport + (info.param.decorator.empty() ? "" : "_" + info.param.decorator);
}

std::unique_ptr<Transport> make_transport(const Kind& kind, const Options& options) {
  ShmSettings impatient;
  impatient.patience = std::chrono::milliseconds{50};
  auto opened = kind.transport == "shm" ? open_shm(options, impatient)
                                        : open_transport(kind.transport, options);
  EXPECT_TRUE(opened) << opened.status().text();
  if (!opened) return nullptr;
  if (kind.decorator == "faulty") {
    auto faults = std::make_shared<Faults>();
    faults->delay_every = 5;
    faults->again_every = 7;
    return std::make_unique<FaultyTransport>(std::move(*opened), faults);
  }
  if (kind.decorator == "reorder") {
    return std::make_unique<ReorderTransport>(std::move(*opened), 17 + options.world_rank);
  }
  if (kind.decorator == "counted") {
    return std::make_unique<CountedTransport>(std::move(*opened), std::make_shared<Counts>());
  }
  return std::move(*opened);
}

Status Endpoint::put(std::size_t rank, std::span<const Segment> segments, std::size_t offset,
                     std::uint32_t word_index) {
  const std::uint64_t token = next_token++;
  while (true) {
    Status status = transport->put(peers[rank], segments, {windows[rank], offset},
                                   signal(rank, word_index), token);
    if (status.code() != Code::again) return status;
    if (Status failure = pump(); !failure) return failure;
  }
}

Status Endpoint::pump() {
  std::array<Completion, 16> done;
  const std::size_t count = transport->progress(done);
  for (std::size_t i = 0; i < count; ++i) {
    if (!done[i].status) return done[i].status;
  }
  return {};
}

Endpoint make_endpoint(std::unique_ptr<Transport> transport) {
  Endpoint endpoint;
  endpoint.transport = std::move(transport);
  const auto window = endpoint.transport->add_memory({nullptr, window_bytes});
  const auto source = endpoint.transport->add_memory({nullptr, window_bytes});
  EXPECT_TRUE(window && source);
  endpoint.window = *window;
  endpoint.source = *source;
  const auto table = endpoint.transport->add_signals(*window, 0, 64, words);
  EXPECT_TRUE(table) << table.status().text();
  endpoint.table = *table;
  auto blob = endpoint.transport->export_memory(*window);
  EXPECT_TRUE(blob) << blob.status().text();
  endpoint.window_blob = *blob;
  return endpoint;
}

void join(std::vector<Endpoint>& endpoints) {
  for (Endpoint& self : endpoints) {
    for (Endpoint& other : endpoints) {
      const auto peer = self.transport->connect(other.transport->address());
      ASSERT_TRUE(peer) << peer.status().text();
      const auto remote = self.transport->import_memory(*peer, other.window_blob);
      ASSERT_TRUE(remote) << remote.status().text();
      self.peers.push_back(*peer);
      self.windows.push_back(*remote);
    }
  }
}

std::vector<Endpoint> make_endpoints(const Kind& kind, std::uint32_t count) {
  std::vector<Endpoint> endpoints;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    endpoints.push_back(make_endpoint(make_transport(kind, {"contract", rank, 0})));
  }
  join(endpoints);
  for (Endpoint& endpoint : endpoints) endpoint.transport->seal_memory(endpoint.window);
  return endpoints;
}

bool wait_until(Endpoint* mover, const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while (!done()) {
    if (mover != nullptr && !mover->pump()) return false;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

std::byte pattern(std::uint64_t seed, std::size_t i) {
  const std::uint64_t mixed = (seed + 1) * 0x9e37'79b9'7f4a'7c15u + i * 0xbf58'476d'1ce4'e5b9u;
  return static_cast<std::byte>(mixed >> 56);
}

}  // namespace m2n::testing
