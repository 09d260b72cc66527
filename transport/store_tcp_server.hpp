// The serving end of the TCP store: one thread that polls its listener and its clients. Values live
// in an in-process store, which the owner uses directly. Owned by the store object of world rank 0;
// the thread ends with it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "m2n/store.hpp"
#include "transport/log.hpp"
#include "transport/store_tcp_frame.hpp"
#include "transport/store_tcp_socket.hpp"

namespace m2n::transport {

class StoreServer {
 public:
  static Result<std::unique_ptr<StoreServer>> start(const Endpoint& endpoint, std::string job_key);
  // Answers what can be answered, then closes; within half a second.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  Store& values() noexcept { return *values_; }
  std::uint16_t port() const noexcept { return listener_.port; }
  // The owner has changed a value: clients that wait may get it.
  void wake() noexcept;

 private:
  struct Client {
    Descriptor socket;
    Bytes in;
    Bytes out;
    std::size_t sent = 0;     // of out
    std::string waiting_for;  // key; empty = does not wait
    Hello hello;              // the client's
    Nonce nonce{};            // this side's
    bool greeted = false;     // has sent its hello
    bool proven = false;      // may ask for something
    bool closing = false;     // goes when `out` is sent
    Clock::time_point since;  // accepted
  };

  StoreServer(Listener listener, Descriptor event, std::string job_key);
  void run();
  bool turn(int timeout_ms);
  int next_timeout_ms() const;
  void accept_clients();
  void serve(Client& client);
  void read(Client& client);
  void handle(Client& client, const Frame& frame);
  void greet(Client& client, const Frame& frame);
  void check_proof(Client& client, const Frame& frame);
  void answer(Client& client, const Frame& frame);
  void answer_waiters();
  void finish();
  void welcome(Client& client);
  void fail(Client& client, const Status& status);
  void send_out(Client& client);
  void drop_stranger(Client& client, const std::string& why);

  const std::shared_ptr<Store> values_ = make_inproc_store();
  Listener listener_;
  const Descriptor event_;
  const std::string job_key_;
  const Log log_;
  const int owner_process_;
  std::atomic<bool> stopping_{false};
  // The rest belongs to the thread.
  std::map<std::uint64_t, Client> clients_;
  std::uint64_t accepted_ = 0;
  std::uint64_t strangers_ = 0;
  Clock::time_point accept_again_{};  // not before; after the descriptors ran out
  bool values_changed_ = false;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace m2n::transport
