// The store of ranks that are threads of one process: a map, a mutex and a condition variable.
// Set-up only, any thread.
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "transport/store_common.hpp"

namespace m2n {
namespace {

using namespace transport;

class InprocStore final : public Store {
 public:
  Status set(std::string_view key, std::span<const std::byte> value) override {
    if (Status status = check_key("set", key); !status) return status;
    if (Status status = check_value(key, value.size()); !status) return status;
    {
      const std::lock_guard lock{mutex_};
      values_.insert_or_assign(std::string{key}, Bytes{value.begin(), value.end()});
    }
    changed_.notify_all();
    return {};
  }

  Result<Bytes> get(std::string_view key) override {
    if (Status status = check_key("get", key); !status) return status;
    const std::lock_guard lock{mutex_};
    const auto found = values_.find(key);
    if (found == values_.end()) return Code::again;
    return found->second;
  }

  Result<Bytes> wait(std::string_view key, std::chrono::nanoseconds timeout) override {
    if (Status status = check_key("wait", key); !status) return status;
    const auto deadline = deadline_after(timeout);
    std::unique_lock lock{mutex_};
    auto found = values_.end();
    const auto there = [&] { return (found = values_.find(key)) != values_.end(); };
    if (!changed_.wait_until(lock, deadline, there)) {
      return wait_timeout(key, timeout, "of this process");
    }
    return found->second;
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    if (Status status = check_key("add", key); !status) return status;
    Result<std::int64_t> sum{0};
    {
      const std::lock_guard lock{mutex_};
      const auto found = values_.find(key);
      sum = add_to(key, found == values_.end() ? nullptr : &found->second, delta);
      if (!sum) return sum;
      values_.insert_or_assign(std::string{key}, counter_bytes(*sum));
    }
    changed_.notify_all();
    return sum;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes, std::less<>> values_;
};

}  // namespace

std::shared_ptr<Store> make_inproc_store() {
  return std::make_shared<InprocStore>();
}

}  // namespace m2n
