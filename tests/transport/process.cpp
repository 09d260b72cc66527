#include "tests/transport/process.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace m2n::testing {

using transport::Blob;

namespace {

bool send_all(int socket, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes != 0) {
    pollfd wait{socket, POLLIN, 0};
    if (poll(&wait, 1, 30'000) <= 0) return false;
    const ssize_t got = recv(socket, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

bool send_blob(int socket, const Blob& blob) {
  const std::uint64_t size = blob.size();
  return send_all(socket, &size, sizeof size) && send_all(socket, blob.data(), blob.size());
}

std::optional<Blob> receive_blob(int socket) {
  std::uint64_t size = 0;
  if (!receive_all(socket, &size, sizeof size) || size > 1u << 20) return std::nullopt;
  Blob blob(size);
  if (!receive_all(socket, blob.data(), size)) return std::nullopt;
  return blob;
}

Process::Process(const std::function<int(int socket)>& body) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    const int result = body(ends[1]);
    // No tear-down of the parent's test in the child.
    _exit(result != 0 || !::testing::Test::HasFailure() ? result : 1);
  }
  close(ends[1]);
  socket_ = ends[0];
}

Process::Process(Process&& other) noexcept
    : pid_{std::exchange(other.pid_, -1)}, socket_{std::exchange(other.socket_, -1)} {}

Process::~Process() {
  if (pid_ > 0) {
    kill_now();
    wait();
  }
  if (socket_ >= 0) close(socket_);
}

void Process::kill_now() {
  kill(pid_, SIGKILL);
}

void Process::await_death() {
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
}

int Process::wait() {
  int status = 0;
  if (waitpid(std::exchange(pid_, -1), &status, 0) < 0) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

ScratchDirectory::ScratchDirectory() {
  std::string name = "/dev/shm/m2n-test-XXXXXX";
  if (mkdtemp(name.data()) != nullptr) path_ = name;
  EXPECT_FALSE(path_.empty());
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::size_t ScratchDirectory::entries() const {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{path_}) ++count;
  return count;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    ++count;
  }
  return count;
}

bool mount_private_tmpfs(const std::string& path, std::size_t bytes) {
  if (unshare(CLONE_NEWNS) != 0) return false;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  const std::string size = "size=" + std::to_string(bytes);
  return mount("none", path.c_str(), "tmpfs", 0, size.c_str()) == 0;
}

}  // namespace m2n::testing
