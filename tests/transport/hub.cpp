#include "tests/transport/hub.hpp"

#include <utility>

namespace m2n::testing {

using namespace m2n::transport;

Endpoint open_endpoint(std::uint32_t rank, const std::string& directory) {
  ShmSettings settings;
  settings.directory = directory;
  auto opened = open_shm({"job", rank, 0}, settings);
  EXPECT_TRUE(opened) << opened.status().text();
  return make_endpoint(std::move(*opened));
}

std::optional<Endpoint> join_hub(int socket, std::uint32_t rank, std::uint32_t ranks,
                                 const std::string& directory) {
  Endpoint self = open_endpoint(rank, directory);
  if (!send_blob(socket, self.transport->address()) || !send_blob(socket, self.window_blob)) {
    return std::nullopt;
  }
  for (std::uint32_t other = 0; other < ranks; ++other) {
    const auto address = receive_blob(socket);
    const auto window = receive_blob(socket);
    if (!address || !window) return std::nullopt;
    const auto peer = self.transport->connect(*address);
    if (!peer) return std::nullopt;
    const auto remote = self.transport->import_memory(*peer, *window);
    if (!remote) return std::nullopt;
    self.peers.push_back(*peer);
    self.windows.push_back(*remote);
  }
  // Everyone has imported.
  if (!send_blob(socket, {}) || !receive_blob(socket)) return std::nullopt;
  self.transport->seal_memory(self.window);
  return self;
}

bool serve_hub(std::vector<Process>& children) {
  std::vector<Blob> blobs;
  for (Process& child : children) {
    for (int i = 0; i < 2; ++i) {
      auto blob = receive_blob(child.socket());
      if (!blob) return false;
      blobs.push_back(std::move(*blob));
    }
  }
  for (Process& child : children) {
    for (const Blob& blob : blobs) {
      if (!send_blob(child.socket(), blob)) return false;
    }
  }
  for (Process& child : children) {
    if (!receive_blob(child.socket())) return false;
  }
  for (Process& child : children) {
    if (!send_blob(child.socket(), {})) return false;
  }
  return true;
}

}  // namespace m2n::testing
