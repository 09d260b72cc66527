#include "transport/store_job.hpp"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <vector>

#include "transport/posix_io.hpp"
#include "transport/store_common.hpp"

namespace m2n::transport {
namespace {

constexpr std::chrono::seconds lock_timeout{60};
constexpr std::chrono::milliseconds close_timeout{500};

Result<std::int64_t> read_count(const std::string& path) {
  Result<Bytes> bytes = read_small_file(path, 8);
  if (bytes.code() == Code::again) return 0;
  if (!bytes) return bytes.status();
  return add_to(path, &*bytes, 0);
}

Result<std::int64_t> raise_count(const std::string& path) {
  Result<std::int64_t> count = read_count(path);
  if (!count) return count;
  if (Status status = replace_small_file(path, counter_bytes(*count + 1)); !status) return status;
  return *count + 1;
}

// The directory's own files; subdirectories stay.
void remove_directory(const std::string& path) {
  std::vector<std::string> names;
  if (DIR* directory = opendir(path.c_str()); directory != nullptr) {
    while (const dirent* entry = readdir(directory)) names.emplace_back(entry->d_name);
    closedir(directory);
  }
  for (const std::string& name : names) {
    if (name != "." && name != "..") unlink((path + "/" + name).c_str());
  }
  rmdir(path.c_str());
}

Status check_private(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return system_error("lstat " + path);
  if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 077) == 0) return {};
  return {Code::system, Scope::group,
          path + " is not a directory of this user with mode 0700; remove it, or set M2N_STORE"};
}

// The lock of a directory that is still there: its last user may remove it while we wait for it.
Result<Descriptor> enter(const std::string& directory) {
  const auto deadline = deadline_after(lock_timeout);
  while (Clock::now() < deadline) {
    if (Status status = make_directories(directory); !status) return status;
    if (Status status = check_private(directory); !status) return status;
    Result<Descriptor> lock = lock_file(directory + "/lock", lock_timeout);
    if (!lock) {
      if (access(directory.c_str(), F_OK) != 0) continue;
      return lock;
    }
    struct stat info {};
    if (fstat(lock->get(), &info) == 0 && info.st_nlink > 0) return lock;
  }
  return Status{Code::timeout, Scope::group, "directory " + directory + " cannot be locked"};
}

class JobStore final : public Store {
 public:
  struct Place {
    std::string directory;
    std::int64_t number = 0;  // of this store among those of the rank
    std::uint32_t world_size = 0;
  };
  JobStore(Place place, std::shared_ptr<Store> inner)
      : place_{std::move(place)}, inner_{std::move(inner)} {}

  ~JobStore() override {
    if (getpid() == owner_process_) leave();
  }

  Status set(std::string_view key, std::span<const std::byte> value) override {
    return inner_->set(key, value);
  }
  Result<Bytes> get(std::string_view key) override { return inner_->get(key); }
  Result<Bytes> wait(std::string_view key, std::chrono::nanoseconds timeout) override {
    return inner_->wait(key, timeout);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    return inner_->add(key, delta);
  }

 private:
  // What fails here leaves a directory behind that no later job looks at.
  void leave() noexcept {
    Result<Descriptor> lock = lock_file(place_.directory + "/lock", close_timeout);
    if (!lock) return;
    const std::string number = std::to_string(place_.number);
    Result<std::int64_t> left = raise_count(place_.directory + "/left-" + number);
    if (!left || *left < place_.world_size) return;
    remove_directory(place_.directory + "/store-" + number);
    unlink((place_.directory + "/left-" + number).c_str());
    for (std::uint32_t rank = 0; rank < place_.world_size; ++rank) {
      Result<std::int64_t> opened =
          read_count(place_.directory + "/opened-" + std::to_string(rank));
      if (!opened || *opened != place_.number) return;  // somebody uses a later store
    }
    remove_directory(place_.directory);
  }

  const Place place_;
  const std::shared_ptr<Store> inner_;
  const pid_t owner_process_ = getpid();
};

}  // namespace

Result<std::shared_ptr<Store>> open_job_store(const std::string& directory, std::uint32_t rank,
                                              std::uint32_t world_size) {
  Result<Descriptor> lock = enter(directory);
  if (!lock) return lock.status();
  Result<std::int64_t> number = raise_count(directory + "/opened-" + std::to_string(rank));
  if (!number) return number.status();
  Result<std::shared_ptr<Store>> inner =
      make_file_store(directory + "/store-" + std::to_string(*number));
  if (!inner) return inner;
  return std::shared_ptr<Store>{std::make_shared<JobStore>(
      JobStore::Place{directory, *number, world_size}, std::move(*inner))};
}

}  // namespace m2n::transport
