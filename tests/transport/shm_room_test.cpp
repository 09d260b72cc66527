// Directories and limits that have no room for shared memory: always an error that says what to do,
// never a signal.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "tests/transport/process.hpp"
#include "tests/transport/rig.hpp"

namespace m2n::testing {
namespace {

using namespace m2n::transport;

bool says(const Status& status, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    if (status.text().find(part) != std::string::npos) continue;
    ADD_FAILURE() << '"' << part << "\" is missing in: " << status.text();
    return false;
  }
  return status.code() == Code::system;
}

std::uint64_t free_bytes(const std::string& path) {
  struct statvfs room {};
  if (statvfs(path.c_str(), &room) != 0) return 0;
  return static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize;
}

ShmSettings in(const std::string& directory) {
  ShmSettings settings;
  settings.directory = directory;
  return settings;
}

int fill_tiny_tmpfs(const std::string& path) {
  if (!mount_private_tmpfs(path, 1u << 20)) return not_permitted;
  auto opened = open_shm({"job", 3, 0}, in(path));
  if (!opened) return 2;
  const std::uint64_t room = free_bytes(path);
  const auto large = (*opened)->add_memory({nullptr, 16u << 20});
  const std::string needed = std::to_string((16u << 20) + 4096);
  if (!says(large.status(), {needed, std::to_string(room), path, "M2N_SHM_DIR", "max_tokens",
                             "another transport", "rank 3", "add_memory"})) {
    return 3;
  }
  if (free_bytes(path) != room) return 4;  // nothing stays behind
  // Another file leaves 100 KiB.
  const int other = open((path + "/other").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (posix_fallocate(other, 0, static_cast<off_t>(room - (100u << 10))) != 0) return 5;
  if (!says((*opened)->add_memory({nullptr, 200u << 10}).status(), {"M2N_SHM_DIR"})) return 6;
  const auto small = (*opened)->add_memory({nullptr, 90u << 10});
  if (!small) return 7;
  // Whatever is granted can be written to the last byte.
  std::memset((*opened)->local(*small), 1, 90u << 10);
  return open_shm({"job", 4, 0}, in(path)).code() == Code::system ? 0 : 8;
}

TEST(ShmRoom, ATinyFileSystemIsAnErrorNotASignal) {
  const ScratchDirectory directory;
  Process child{[&](int) { return fill_tiny_tmpfs(directory.path()); }};
  const int result = child.wait();
  if (result == not_permitted) GTEST_SKIP() << "mounting a tmpfs in a namespace is not permitted";
  EXPECT_EQ(result, 0);
}

// What does not fit is refused before any of it is taken: others need the room, too.
TEST(ShmRoom, WhatDoesNotFitIsNotBegun) {
  const ScratchDirectory directory;
  Process child{[&](int) {
    const std::string path = directory.path();
    if (!mount_private_tmpfs(path, 40u << 20)) return not_permitted;
    auto opened = open_shm({"job", 3, 0}, in(path));
    if (!opened) return 2;
    const std::string room = "free " + std::to_string(free_bytes(path)) + " bytes";
    return says((*opened)->add_memory({nullptr, 60u << 20}).status(), {room}) ? 0 : 3;
  }};
  const int result = child.wait();
  if (result == not_permitted) GTEST_SKIP() << "mounting a tmpfs in a namespace is not permitted";
  EXPECT_EQ(result, 0);
}

TEST(ShmRoom, ADirectoryThatCannotBeWritten) {
  const ScratchDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0555), 0);
  Process child{[&](int) {
    // Root may write anywhere; nobody may not.
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return not_permitted;
    const auto opened = open_shm({"job", 1, 0}, in(directory.path()));
    return says(opened.status(), {directory.path(), "Permission denied", "M2N_SHM_DIR"}) ? 0 : 2;
  }};
  const int result = child.wait();
  if (result == not_permitted) GTEST_SKIP() << "this root cannot become another user";
  EXPECT_EQ(result, 0);
}

TEST(ShmRoom, ADirectoryThatIsNone) {
  for (const char* path : {"/nonexistent-directory", "/dev/null", "/proc", ""}) {
    const auto opened = open_shm({"job", 1, 0}, in(path));
    EXPECT_EQ(opened.code(), Code::system) << path;
    EXPECT_NE(opened.status().text().find("M2N_SHM_DIR"), std::string::npos);
  }
}

TEST(ShmRoom, AFileSizeLimitIsAnErrorNotASignal) {
  Process child{[](int) {
    auto opened = open_shm({"job", 1, 0}, {});
    if (!opened) return 2;
    const rlimit limit{1u << 16, 1u << 16};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
    if (!says((*opened)->add_memory({nullptr, 1u << 20}).status(), {"File too large"})) return 4;
    return (*opened)->add_memory({nullptr, 1u << 14}) ? 0 : 5;
  }};
  EXPECT_EQ(child.wait(), 0);
}

TEST(ShmRoom, NoMoreDescriptors) {
  Process child{[](int) {
    auto first = open_shm({"job", 1, 0}, {});
    if (!first) return 2;
    const int lowest_free = dup(0);
    close(lowest_free);
    const rlimit limit{static_cast<rlim_t>(lowest_free), static_cast<rlim_t>(lowest_free)};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
    if (!says((*first)->add_memory({nullptr, 4096}).status(), {"Too many open files"})) return 4;
    const auto peer = (*first)->connect((*first)->address());
    if (peer) return 5;
    return peer.status().text().find("Too many open files") != std::string::npos ? 0 : 6;
  }};
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace m2n::testing
