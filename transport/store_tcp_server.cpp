#include "transport/store_tcp_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <vector>

namespace m2n::transport {
namespace {

constexpr std::chrono::seconds handshake_timeout{10};
constexpr std::chrono::milliseconds finish_timeout{400};
constexpr std::chrono::milliseconds accept_pause{100};
constexpr std::size_t max_unproven_clients = 256;

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(const Endpoint& endpoint,
                                                        std::string job_key) {
  Result<Listener> listener = listen_at(endpoint);
  if (!listener) return listener.status();
  Descriptor event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!event) return system_error("make_tcp_store: eventfd");
  std::unique_ptr<StoreServer> server{
      new StoreServer{std::move(*listener), std::move(event), std::move(job_key)}};
  // The application's signal handlers must not run on this thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    server->thread_ = std::make_unique<std::thread>([raw = server.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    status = {Code::system, Scope::group, std::string{"make_tcp_store: thread: "} + error.what()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status) return status;
  return server;
}

StoreServer::StoreServer(Listener listener, Descriptor event, std::string job_key)
    : listener_{std::move(listener)},
      event_{std::move(event)},
      job_key_{std::move(job_key)},
      log_{{}, 0},
      owner_process_{getpid()} {}

StoreServer::~StoreServer() {
  if (!thread_) return;
  if (getpid() != owner_process_) {  // a fork: the thread is not here, and its state is anyone's
    static_cast<void>(thread_.release());
    return;
  }
  stopping_.store(true);
  wake();
  thread_->join();
}

void StoreServer::wake() noexcept {
  const std::uint64_t one = 1;
  // EAGAIN: the counter is full, so the thread is awake anyway.
  static_cast<void>(!write(event_.get(), &one, sizeof one));
}

void StoreServer::run() {
  while (!stopping_.load()) turn(next_timeout_ms());
  finish();
}

// The time to the next thing that no descriptor tells.
int StoreServer::next_timeout_ms() const {
  auto next = Clock::time_point::max();
  if (accept_again_ > Clock::now()) next = accept_again_;
  for (const auto& [id, client] : clients_) {
    if (!client.proven) next = std::min(next, client.since + handshake_timeout);
  }
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::max<long>(left, 0));
}

// One poll and what it shows. False if nothing happened.
bool StoreServer::turn(int timeout_ms) {
  std::vector<pollfd> entries{{event_.get(), POLLIN, 0}};
  const bool may_accept = Clock::now() >= accept_again_ && !stopping_.load();
  entries.push_back({may_accept ? listener_.socket.get() : -1, POLLIN, 0});
  for (const auto& [id, client] : clients_) {
    const bool writes = client.sent < client.out.size();
    entries.push_back({client.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
  }
  if (poll(entries.data(), entries.size(), timeout_ms) < 0) return false;  // EINTR, ENOMEM: again

  bool something = false;
  if (entries[0].revents != 0) {
    std::uint64_t count = 0;
    static_cast<void>(!::read(event_.get(), &count, sizeof count));
    values_changed_ = true;
  }
  std::size_t i = 2;
  for (auto& [id, client] : clients_) {
    if (entries[i++].revents != 0) {
      serve(client);
      something = true;
    }
    if (!client.proven && Clock::now() > client.since + handshake_timeout) {
      drop_stranger(client, "said nothing useful for 10 s");
    }
  }
  if (values_changed_) answer_waiters();
  if (entries[1].revents != 0) accept_clients();
  std::erase_if(clients_, [](const auto& entry) { return !entry.second.socket; });
  return something;
}

void StoreServer::accept_clients() {
  std::size_t unproven = 0;
  for (const auto& [id, client] : clients_) unproven += client.proven ? 0 : 1;
  while (unproven++ < max_unproven_clients) {
    Descriptor socket{
        accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!socket) {
      // Out of descriptors or memory: the connection stays queued, so do not poll it hot.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        accept_again_ = Clock::now() + accept_pause;
      }
      return;
    }
    Client client;
    client.socket = std::move(socket);
    client.since = Clock::now();
    clients_.emplace(accepted_++, std::move(client));
  }
  accept_again_ = Clock::now() + accept_pause;
}

void StoreServer::serve(Client& client) {
  if (client.sent < client.out.size()) send_out(client);
  if (client.socket && client.sent == client.out.size()) read(client);
}

// Takes what is there, frame by frame, until an answer has to be sent first.
void StoreServer::read(Client& client) {
  const Status status = receive_some(client.socket.get(), client.in, frame_header_bytes + 65536);
  if (status.code() == Code::closed) {
    client.socket.reset();
    return;
  }
  while (client.socket && !client.closing && !client.in.empty() &&
         client.sent == client.out.size()) {
    if (!client.waiting_for.empty()) {
      drop_stranger(client, "sent a request before its last one was answered");
      return;
    }
    const ParsedFrame parsed =
        parse_frame(client.in, client.proven ? FrameSource::client : FrameSource::stranger);
    if (parsed.state == ParsedFrame::State::incomplete) return;
    if (parsed.state == ParsedFrame::State::bad) {
      drop_stranger(client, parsed.reason);
      return;
    }
    handle(client, parsed.frame);
    if (!client.socket) return;
    client.in.erase(client.in.begin(),
                    client.in.begin() + static_cast<std::ptrdiff_t>(parsed.frame.bytes));
  }
}

void StoreServer::handle(Client& client, const Frame& frame) {
  if (client.proven) {
    answer(client, frame);
  } else if (frame.type == FrameType::hello && !client.greeted) {
    greet(client, frame);
  } else if (frame.type == FrameType::proof && client.greeted) {
    check_proof(client, frame);
  } else {
    drop_stranger(client, "broke the order of the handshake");
  }
}

void StoreServer::greet(Client& client, const Frame& frame) {
  client.greeted = true;
  client.hello = decode_hello(frame.value);
  if (!fill_random(client.nonce)) {
    drop_stranger(client, "could not be challenged: no random bytes");
    return;
  }
  const bool has_key = !job_key_.empty();
  append_frame(client.out, FrameType::challenge, {}, encode_hello({client.nonce, has_key}));
  if (client.hello.has_key != has_key) {
    client.closing = true;  // the challenge tells the client which side lacks the key
    log_(LogLevel::info, "store: a connection was refused: one side has a job key, one has none");
  } else if (!has_key) {
    welcome(client);
    return;
  }
  send_out(client);
}

void StoreServer::check_proof(Client& client, const Frame& frame) {
  Result<Digest> wanted = store_proof(job_key_, "client", client.hello.nonce, client.nonce);
  if (wanted && equal_digests(*wanted, frame.value)) {
    welcome(client);
    return;
  }
  fail(client, {Code::invalid, Scope::group, "the job key differs from that of rank 0"});
  client.closing = true;
  if (strangers_++ == 0) {
    log_(LogLevel::warn, "store: a connection with a wrong job key was refused");
  }
  send_out(client);
}

void StoreServer::welcome(Client& client) {
  std::span<const std::byte> proof;
  Result<Digest> digest{Digest{}};
  if (!job_key_.empty()) {
    digest = store_proof(job_key_, "server", client.hello.nonce, client.nonce);
    if (!digest) {
      fail(client, digest.status());
      client.closing = true;
      return;
    }
    proof = *digest;
  }
  append_frame(client.out, FrameType::welcome, {}, proof);
  client.proven = true;
  send_out(client);
}

void StoreServer::answer(Client& client, const Frame& frame) {
  if (frame.type == FrameType::set) {
    const Status status = values_->set(frame.key, frame.value);
    status ? append_frame(client.out, FrameType::done, {}, {}) : fail(client, status);
    values_changed_ = true;
  } else if (frame.type == FrameType::add) {
    const auto delta = std::bit_cast<std::int64_t>(load_le(frame.value.data(), 8));
    Result<std::int64_t> sum = values_->add(frame.key, delta);
    sum ? append_frame(client.out, FrameType::sum, {}, counter_bytes(*sum))
        : fail(client, sum.status());
    values_changed_ = true;
  } else {
    Result<Bytes> value = values_->get(frame.key);
    if (value) {
      append_frame(client.out, FrameType::value, {}, *value);
    } else if (value.code() != Code::again) {
      fail(client, value.status());
    } else if (frame.type == FrameType::get) {
      append_frame(client.out, FrameType::again, {}, {});
    } else {
      client.waiting_for = frame.key;  // answered when the key comes; meanwhile others are served
    }
  }
  send_out(client);
}

void StoreServer::answer_waiters() {
  values_changed_ = false;
  for (auto& [id, client] : clients_) {
    if (!client.socket || client.waiting_for.empty()) continue;
    Result<Bytes> value = values_->get(client.waiting_for);
    if (!value) continue;
    client.waiting_for.clear();
    append_frame(client.out, FrameType::value, {}, *value);
    send_out(client);
  }
}

// Requests that came before the end and answers on their way still go through; new connections and
// waits for keys that are not there do not.
void StoreServer::finish() {
  const auto deadline = Clock::now() + finish_timeout;
  answer_waiters();
  listener_.socket.reset();
  while (Clock::now() < deadline) {
    const bool moved = turn(0);
    const bool pending = std::any_of(clients_.begin(), clients_.end(), [](const auto& entry) {
      return entry.second.sent < entry.second.out.size();
    });
    if (!moved && !pending) break;
    if (!moved) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  clients_.clear();
}

void StoreServer::fail(Client& client, const Status& status) {
  Bytes content{static_cast<std::byte>(status.code())};
  const std::string text = status.text().substr(0, max_failure_bytes - 1);
  const auto bytes = std::as_bytes(std::span{text.data(), text.size()});
  content.insert(content.end(), bytes.begin(), bytes.end());
  append_frame(client.out, FrameType::failure, {}, content);
}

void StoreServer::send_out(Client& client) {
  while (client.sent < client.out.size()) {
    std::size_t moved = 0;
    const Status status =
        send_some(client.socket.get(), std::span{client.out}.subspan(client.sent), &moved);
    client.sent += moved;
    if (status.code() == Code::again) return;
    if (!status) {
      client.socket.reset();
      return;
    }
  }
  client.out.clear();
  client.sent = 0;
  if (client.closing) client.socket.reset();
}

void StoreServer::drop_stranger(Client& client, const std::string& why) {
  client.socket.reset();
  if (strangers_++ == 0) {
    log_(LogLevel::warn,
         "store: dropped a connection that is not of this job: " + why + "; more are not reported");
  }
}

}  // namespace m2n::transport
