// The TCP store objects: the one of world rank 0, which serves, and those of the others, which keep
// a pool of connections. Set-up only, any thread.
#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "transport/env.hpp"
#include "transport/store_tcp_client.hpp"
#include "transport/store_tcp_server.hpp"

namespace m2n {
namespace {

using namespace transport;

constexpr std::chrono::seconds resolver_patience{10};

class TcpServerStore final : public Store {
 public:
  explicit TcpServerStore(std::unique_ptr<StoreServer> server)
      : owner_process_{getpid()}, server_{std::move(server)} {}

  std::uint16_t port() const noexcept { return server_->port(); }

  Status set(std::string_view key, std::span<const std::byte> value) override {
    if (Status status = check_owner("set"); !status) return status;
    Status status = server_->values().set(key, value);
    if (status) server_->wake();
    return status;
  }
  Result<Bytes> get(std::string_view key) override {
    if (Status status = check_owner("get"); !status) return status;
    return server_->values().get(key);
  }
  Result<Bytes> wait(std::string_view key, std::chrono::nanoseconds timeout) override {
    if (Status status = check_owner("wait"); !status) return status;
    return server_->values().wait(key, timeout);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    if (Status status = check_owner("add"); !status) return status;
    Result<std::int64_t> sum = server_->values().add(key, delta);
    if (sum) server_->wake();
    return sum;
  }

 private:
  // A forked child has a copy of the values that nobody serves.
  Status check_owner(std::string_view function) const {
    if (getpid() == owner_process_) return {};
    return refuse({function, "process", std::to_string(getpid()),
                   std::to_string(owner_process_) + ", which made the store", 0, "make_tcp_store"});
  }

  const pid_t owner_process_;
  const std::unique_ptr<StoreServer> server_;
};

class TcpClientStore final : public Store {
 public:
  TcpClientStore(const TcpStoreConfig& config, std::string job_key)
      : endpoint_{config.host, config.port},
        job_key_{std::move(job_key)},
        start_timeout_{config.start_timeout.count() == 0 ? std::chrono::nanoseconds::max()
                                                         : config.start_timeout} {}

  // The first connection: the server may start later than this rank.
  Status connect() {
    Result<StoreConnection> connection = open_patiently(deadline_after(start_timeout_));
    if (!connection) return connection.status();
    give_back(std::move(*connection));
    return {};
  }

  Status set(std::string_view key, std::span<const std::byte> value) override {
    if (Status status = check_key("set", key); !status) return status;
    if (Status status = check_value(key, value.size()); !status) return status;
    Result<StoreReply> reply =
        ask({FrameType::set, key, value}, FrameType::done, deadline_after(start_timeout_));
    return reply.status();
  }

  Result<Bytes> get(std::string_view key) override {
    if (Status status = check_key("get", key); !status) return status;
    Result<StoreReply> reply =
        ask({FrameType::get, key, {}}, FrameType::value, deadline_after(start_timeout_));
    if (!reply) return reply.status();
    return std::move(reply->value);
  }

  Result<Bytes> wait(std::string_view key, std::chrono::nanoseconds timeout) override {
    if (Status status = check_key("wait", key); !status) return status;
    if (timeout.count() <= 0) {
      Result<Bytes> value = get(key);
      if (value.code() == Code::again) return wait_timeout(key, timeout, where());
      return value;
    }
    // The deadline is this side's alone: at it the connection is dropped and the server forgets.
    Result<StoreReply> reply =
        ask({FrameType::wait, key, {}}, FrameType::value, deadline_after(timeout));
    if (reply.code() == Code::timeout) return wait_timeout(key, timeout, where());
    if (!reply) return reply.status();
    return std::move(reply->value);
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    if (Status status = check_key("add", key); !status) return status;
    const Bytes bytes = counter_bytes(delta);
    Result<StoreReply> reply =
        ask({FrameType::add, key, bytes}, FrameType::sum, deadline_after(start_timeout_));
    if (!reply) return reply.status();
    return std::bit_cast<std::int64_t>(load_le(reply->value.data(), 8));
  }

 private:
  std::string where() const { return "tcp://" + endpoint_.text(); }

  Status with_place(std::string_view what, const Status& status, Code code) const {
    return {code, Scope::group,
            std::string{what} + ": store " + where() + ": " + status.text() +
                " (see MASTER_ADDR, MASTER_PORT, M2N_STORE, M2N_JOB_KEY, M2N_START_TIMEOUT_MS)",
            code == Code::peer_failed ? 0 : -1};
  }

  Result<StoreConnection> open_patiently(Clock::time_point deadline) {
    const auto start = Clock::now();
    // Names of a starting job may take a while to resolve, but a wrong one should not cost a
    // minute.
    const auto resolver_deadline =
        start + std::min<Clock::duration>(resolver_patience, (deadline - start) / 2);
    std::chrono::nanoseconds pause = std::chrono::milliseconds{5};
    for (;;) {
      Result<StoreConnection> connection = StoreConnection::open(endpoint_, job_key_, deadline);
      if (connection) return connection;
      const Status status = connection.status();
      const bool name_may_come = status.text().find("does not resolve") != std::string::npos &&
                                 Clock::now() < resolver_deadline;
      if (status.code() != Code::again && status.code() != Code::timeout && !name_may_come) {
        return with_place("make_tcp_store", status, status.code());
      }
      const auto now = Clock::now();
      if (now + pause >= deadline || status.code() == Code::timeout) {
        const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - start);
        return with_place("make_tcp_store",
                          {Code::timeout, Scope::group,
                           "not reached in " + std::to_string(waited.count()) + " ms; last try: " +
                               (status.text().empty() ? "no answer" : status.text()) +
                               "; is rank 0 running there?"},
                          Code::timeout);
      }
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::nanoseconds>(pause * 2, std::chrono::milliseconds{200});
    }
  }

  // A further connection, for a call beside others: the server was there, so refusal means it is
  // gone.
  Result<StoreConnection> take(Clock::time_point deadline) {
    {
      const std::lock_guard lock{mutex_};
      if (getpid() != process_) {  // forked: the parent goes on using the sockets of the pool
        idle_.clear();
        process_ = getpid();
      }
      if (!idle_.empty()) {
        StoreConnection connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    return StoreConnection::open(endpoint_, job_key_, deadline);
  }

  void give_back(StoreConnection connection) {
    const std::lock_guard lock{mutex_};
    idle_.push_back(std::move(connection));
  }

  Result<StoreReply> ask(const StoreConnection::Request& request, FrameType expected,
                         Clock::time_point deadline) {
    const std::string what = "key \"" + std::string{request.key} + "\"";
    Result<StoreConnection> connection = take(deadline);
    if (!connection) {
      const Code code = connection.code();
      return with_place(what, connection.status(), code == Code::again ? Code::peer_failed : code);
    }
    Result<StoreReply> reply = connection->ask(request, deadline);
    if (!reply) {
      if (reply.code() != Code::closed) return with_place(what, reply.status(), reply.code());
      const Status gone{Code::peer_failed, Scope::group, "the connection to rank 0 was lost"};
      return with_place(what, gone, Code::peer_failed);
    }
    if (reply->type != expected && reply->type != FrameType::failure &&
        !(reply->type == FrameType::again && request.type == FrameType::get)) {
      const Status wrong{Code::peer_failed, Scope::group, "rank 0 answered another question"};
      return with_place(what, wrong, Code::peer_failed);
    }
    give_back(std::move(*connection));
    if (reply->type == FrameType::again) return Code::again;
    if (reply->type == FrameType::failure) return failure_of(*reply);
    return reply;
  }

  const Endpoint endpoint_;
  const std::string job_key_;
  const std::chrono::nanoseconds start_timeout_;
  std::mutex mutex_;
  std::vector<StoreConnection> idle_;
  pid_t process_ = getpid();
};

Result<std::string> job_key_of(const TcpStoreConfig& config) {
  if (!config.job_key.empty()) return config.job_key;
  Result<Environment> environment = read_environment();
  if (!environment) return environment.status();
  return environment->job_key.value_or("");
}

}  // namespace

Result<std::shared_ptr<Store>> make_tcp_store(const TcpStoreConfig& config) {
  if (config.host.empty()) {
    return refuse(
        {"make_tcp_store", "host", "\"\"", "a name or an address", -1, "TcpStoreConfig::host"});
  }
  if (config.port == 0 && !config.server) {
    return refuse(
        {"make_tcp_store", "port", "0", "1..65535 for a client", -1, "TcpStoreConfig::port"});
  }
  if (config.start_timeout.count() < 0) {
    return refuse({"make_tcp_store", "start_timeout",
                   std::to_string(config.start_timeout.count()) + " ms", "0 (= never) or more", -1,
                   "TcpStoreConfig::start_timeout"});
  }
  Result<std::string> job_key = job_key_of(config);
  if (!job_key) return job_key.status();
  if (config.server) {
    Result<std::unique_ptr<StoreServer>> server =
        StoreServer::start({config.host, config.port}, std::move(*job_key));
    if (!server) return server.status();
    return std::shared_ptr<Store>{std::make_shared<TcpServerStore>(std::move(*server))};
  }
  auto store = std::make_shared<TcpClientStore>(config, std::move(*job_key));
  if (Status status = store->connect(); !status) return status;
  return std::shared_ptr<Store>{std::move(store)};
}

std::uint16_t tcp_store_port(const Store& store) noexcept {
  const auto* server = dynamic_cast<const TcpServerStore*>(&store);
  return server == nullptr ? 0 : server->port();
}

}  // namespace m2n
