// Shared by the tests of the bootstrap: directories, variables, ports and raw sockets that go away
// by themselves.
#pragma once

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "m2n/store.hpp"
#include "transport/posix_io.hpp"
#include "transport/store_tcp_client.hpp"
#include "transport/store_tcp_frame.hpp"

namespace m2n::bootstrap {

using namespace std::chrono_literals;

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span{text.data(), text.size()});
  return {bytes.begin(), bytes.end()};
}
inline std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "m2n-test-XXXXXX";
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::size_t entries() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator{path_}) count += entry.exists();
    return count;
  }

 private:
  std::string path_;
};

// Every variable that the bootstrap reads is gone in its lifetime, but for those given.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const char* name : {"M2N_TRANSPORT",
                             "M2N_INTERFACE",
                             "M2N_LOG",
                             "M2N_JOB_KEY",
                             "M2N_STORE",
                             "M2N_START_TIMEOUT_MS",
                             "M2N_STEP_TIMEOUT_MS",
                             "M2N_PLUGIN_PATH",
                             "M2N_SHM_DIR",
                             "M2N_HOST_ID",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "PMIX_RANK",
                             "PMIX_NAMESPACE",
                             "OMPI_MCA_ess_base_jobid",
                             "OMPI_MCA_orte_hnp_uri",
                             "OMPI_MCA_orte_precondition_transports",
                             "PMI_JOBID",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NUM_TASKS",
                             "TMPDIR"}) {
      change(name, std::nullopt);
    }
    for (const auto& [name, value] : values) change(name, value);
  }
  ~Variables() {
    for (const auto& [name, value] : before_) apply(name, value);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static void apply(const std::string& name, const std::optional<std::string>& value) {
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  void change(const std::string& name, const std::optional<std::string>& value) {
    const char* old = std::getenv(name.c_str());
    before_.emplace(name, old == nullptr ? std::nullopt : std::optional<std::string>{old});
    apply(name, value);
  }
  std::map<std::string, std::optional<std::string>> before_;
};

// A loopback port that nobody else gets: bound here without listening, which leaves it to a server
// that listens with SO_REUSEADDR. Connections are refused until then.
class ReservedPort {
 public:
  ReservedPort() : socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    const int on = 1;
    setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address = loopback(0);
    if (bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
    socklen_t bytes = sizeof address;
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    number_ = ntohs(address.sin_port);
  }
  std::uint16_t number() const { return number_; }
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }

 private:
  transport::Descriptor socket_;
  std::uint16_t number_ = 0;
};

// A blocking connection to a store that speaks by hand.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)} {
    const sockaddr_in address = ReservedPort::loopback(port);
    connected_ =
        connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    const timeval limit{5, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  bool connected() const { return connected_; }
  int socket_number() const { return socket_.get(); }
  void send_bytes(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }
  void send_frame(transport::FrameType type, std::string_view key, const Bytes& value) {
    Bytes frame;
    transport::append_frame(frame, type, key, value);
    send_bytes(frame);
  }
  // Bytes until the frame is whole; nothing if the server closed or said nothing for 5 s.
  std::optional<transport::StoreReply> receive(transport::FrameSource source) {
    for (;;) {
      const transport::ParsedFrame parsed = transport::parse_frame(in_, source);
      if (parsed.state == transport::ParsedFrame::State::bad) return std::nullopt;
      if (parsed.state == transport::ParsedFrame::State::complete) {
        transport::StoreReply reply{parsed.frame.type,
                                    {parsed.frame.value.begin(), parsed.frame.value.end()}};
        in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(parsed.frame.bytes));
        return reply;
      }
      std::byte piece[4096];
      const ssize_t got = recv(socket_.get(), piece, sizeof piece, 0);
      if (got <= 0) return std::nullopt;
      in_.insert(in_.end(), piece, piece + got);
    }
  }
  // True when the server has closed, within 5 s.
  bool closed_by_server() {
    std::byte piece[4096];
    ssize_t got = 0;
    while ((got = recv(socket_.get(), piece, sizeof piece, 0)) > 0) continue;
    return got == 0 || errno == ECONNRESET;
  }
  // The handshake without a job key.
  bool greet() {
    const auto hello = transport::encode_hello({});
    send_frame(transport::FrameType::hello, {}, {hello.begin(), hello.end()});
    return receive(transport::FrameSource::unproven_server) &&
           receive(transport::FrameSource::unproven_server);
  }

 private:
  transport::Descriptor socket_;
  bool connected_ = false;
  Bytes in_;
};

}  // namespace m2n::bootstrap
