// The store of ranks that share a directory: one file per key, put there by rename. Set-up only,
// any thread of any process; holds nothing but the path. A directory serves one job: keys of an
// earlier one would be taken for this one's.
#include <algorithm>
#include <thread>

#include "transport/hmac.hpp"
#include "transport/posix_io.hpp"
#include "transport/store_common.hpp"

namespace m2n {
namespace {

using namespace transport;

constexpr std::chrono::seconds lock_timeout{60};

// "k-" and the key with everything unusual as %XX, or "h-" and its hash where that gets too long.
Result<std::string> file_name(std::string_view key) {
  std::string name{"k-"};
  for (const char c : key) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    if (plain) {
      name += c;
    } else {
      const std::byte byte{static_cast<unsigned char>(c)};
      name.append("%").append(hex({&byte, 1}));
    }
  }
  if (name.size() <= 200) return name;
  Result<Digest> digest = sha256(key);
  if (!digest) return digest.status();
  return "h-" + hex(*digest);
}

class FileStore final : public Store {
 public:
  explicit FileStore(std::string directory) : directory_{std::move(directory)} {}

  Status set(std::string_view key, std::span<const std::byte> value) override {
    if (Status status = check_key("set", key); !status) return status;
    if (Status status = check_value(key, value.size()); !status) return status;
    Result<std::string> path = path_of(key);
    if (!path) return path.status();
    return with_key("set", key, replace_small_file(*path, value));
  }

  Result<Bytes> get(std::string_view key) override {
    if (Status status = check_key("get", key); !status) return status;
    return look("get", key);
  }

  Result<Bytes> wait(std::string_view key, std::chrono::nanoseconds timeout) override {
    if (Status status = check_key("wait", key); !status) return status;
    const auto deadline = deadline_after(timeout);
    std::chrono::nanoseconds pause = std::chrono::microseconds{100};
    for (;;) {
      Result<Bytes> value = look("wait", key);
      if (value || value.code() != Code::again) return value;
      const std::chrono::nanoseconds left = deadline - Clock::now();
      if (left.count() <= 0) return wait_timeout(key, timeout, "file:" + directory_);
      std::this_thread::sleep_for(std::min(pause, left));
      pause = std::min<std::chrono::nanoseconds>(pause * 2, std::chrono::milliseconds{20});
    }
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    if (Status status = check_key("add", key); !status) return status;
    Result<std::string> path = path_of(key);
    if (!path) return path.status();
    Result<Descriptor> lock = lock_file(directory_ + "/lock", lock_timeout);
    if (!lock) return with_key("add", key, lock.status());
    Result<Bytes> old = look("add", key);
    if (!old && old.code() != Code::again) return old.status();
    Result<std::int64_t> sum = add_to(key, old ? &*old : nullptr, delta);
    if (!sum) return sum;
    if (Status status = replace_small_file(*path, counter_bytes(*sum)); !status) {
      return with_key("add", key, std::move(status));
    }
    return sum;
  }

 private:
  Result<std::string> path_of(std::string_view key) const {
    Result<std::string> name = file_name(key);
    if (!name) return name;
    return directory_ + "/" + *name;
  }

  Result<Bytes> look(std::string_view function, std::string_view key) const {
    Result<std::string> path = path_of(key);
    if (!path) return path.status();
    Result<Bytes> value = read_small_file(*path, max_value_bytes);
    if (value || value.code() == Code::again) return value;
    return with_key(function, key, value.status());
  }

  Status with_key(std::string_view function, std::string_view key, Status status) const {
    if (status) return status;
    return {status.code(), Scope::group,
            std::string{function} + ": key \"" + std::string{key} +
                "\" of the store file:" + directory_ + ": " + status.text() + " (see M2N_STORE)"};
  }

  const std::string directory_;
};

}  // namespace

Result<std::shared_ptr<Store>> make_file_store(std::string_view directory) {
  if (directory.empty() || directory.find('\0') != std::string_view::npos) {
    return refuse({"make_file_store", "directory", "\"" + std::string{directory} + "\"",
                   "a path of at least one character", -1, "M2N_STORE"});
  }
  std::string path{directory};
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (Status status = make_directories(path); !status) {
    return Status{Code::system, Scope::group,
                  "make_file_store: directory = " + path + ", allowed: one that can be made or " +
                      "written: " + status.text() + " (see M2N_STORE)"};
  }
  return std::shared_ptr<Store>{std::make_shared<FileStore>(std::move(path))};
}

}  // namespace m2n
