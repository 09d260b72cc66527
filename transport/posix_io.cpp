#include "transport/posix_io.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "transport/hmac.hpp"
#include "transport/store_common.hpp"

namespace m2n::transport {

Status system_error(std::string_view what) {
  const int error = errno;
  return {Code::system, Scope::group, std::string{what} + ": " + std::strerror(error)};
}

Result<Bytes> read_small_file(const std::string& path, std::size_t limit) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
  if (!file) {
    // ESTALE: a network file system whose file was replaced under us; the next look finds the new.
    if (errno == ENOENT || errno == ESTALE) return Code::again;
    return system_error("open " + path);
  }
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return system_error("fstat " + path);
  if (!S_ISREG(info.st_mode) || static_cast<std::size_t>(info.st_size) > limit) {
    return Status{Code::system, Scope::group,
                  path + " is not a file of 0.." + std::to_string(limit) + " bytes"};
  }
  Bytes content(static_cast<std::size_t>(info.st_size));
  std::size_t have = 0;
  while (have < content.size()) {
    const ssize_t got = read(file.get(), content.data() + have, content.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == ESTALE) return Code::again;
    if (got < 0) return system_error("read " + path);
    if (got == 0) return Code::again;  // complete files never shrink: a file system's cache lags
    have += static_cast<std::size_t>(got);
  }
  return content;
}

static Status write_all(int file, std::span<const std::byte> content) {
  while (!content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("write");
    content = content.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status replace_small_file(const std::string& path, std::span<const std::byte> content) {
  std::array<std::byte, 12> random{};
  if (Status status = fill_random(random); !status) return status;
  const std::string temporary =
      path.substr(0, path.rfind('/') + 1) + "t-" + std::to_string(getpid()) + "-" + hex(random);
  Descriptor file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  if (!file) return system_error("open " + temporary);
  Status status = write_all(file.get(), content);
  file.reset();
  if (status && rename(temporary.c_str(), path.c_str()) != 0) {
    status = system_error("rename to " + path);
  }
  if (!status) unlink(temporary.c_str());
  return status;
}

Status make_directories(const std::string& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos;
       end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), 0700);  // what fails here fails below, with a text
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return system_error("mkdir " + path);
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return system_error("stat " + path);
  if (!S_ISDIR(info.st_mode)) {
    return {Code::system, Scope::group, path + " is there and is no directory"};
  }
  return {};
}

Result<Descriptor> lock_file(const std::string& path, std::chrono::nanoseconds timeout) {
  Descriptor file{open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!file) return system_error("open " + path);
  const auto deadline = deadline_after(timeout);
  std::chrono::microseconds pause{50};
  // Not a blocking flock: a stopped process may hold the lock, and then a deadline must hold.
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return system_error("flock " + path);
    if (Clock::now() >= deadline) {
      return Status{Code::timeout, Scope::group,
                    path + " stays locked by another process of this job"};
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds{500});  // others may hold it hot
  }
  return file;
}

}  // namespace m2n::transport
