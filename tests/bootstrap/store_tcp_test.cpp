// The life of the TCP store: late, lost and closing servers, ports, signals, descriptors.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/time.h>

#include <csignal>
#include <functional>
#include <future>

#include "tests/bootstrap/store_tcp_support.hpp"
#include "transport/store_common.hpp"
#include "transport/store_tcp_socket.hpp"

namespace m2n::bootstrap {
namespace {

using namespace transport;

std::chrono::nanoseconds time_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::steady_clock::now() - start;
}

// The first tries of a client meet somebody who hangs up, then nobody, then the server.
TEST_F(TcpStoreTest, ServersMayComeLate) {
  const ReservedPort port;
  Result<Listener> early = listen_at({"127.0.0.1", port.number()});
  ASSERT_TRUE(early) << early.status().text();
  auto client = std::async(std::launch::async, [&] { return open_client(port.number()); });
  ASSERT_TRUE(wait_for(early->socket.get(), POLLIN, deadline_after(10s)));
  Descriptor{accept(early->socket.get(), nullptr, nullptr)}.reset();
  early->socket.reset();
  auto server = open_server(port.number());
  ASSERT_TRUE(server) << server.status().text();
  auto store = client.get();
  ASSERT_TRUE(store) << store.status().text();
  EXPECT_TRUE((*store)->set("a", bytes_of("b")));
}

TEST_F(TcpStoreTest, AServerThatNeverComesIsNamed) {
  const ReservedPort port;
  Result<std::shared_ptr<Store>> store = Code::again;
  const auto took = time_of([&] { store = open_client(port.number(), "", 150ms); });
  EXPECT_EQ(store.code(), Code::timeout);
  const std::string text = store.status().text();
  EXPECT_TRUE(contains(text, "127.0.0.1:" + std::to_string(port.number())) &&
              contains(text, "rank 0") && contains(text, "M2N_START_TIMEOUT_MS"))
      << text;
  EXPECT_LT(took, 5s);
}

// I-66. A label of 64 letters is refused by the resolver itself, whatever network there is.
TEST_F(TcpStoreTest, ANameThatDoesNotResolveIsNamedBeforeTimeIsOver) {
  TcpStoreConfig config;
  config.host = std::string(64, 'h') + ".invalid";
  config.port = 1;
  config.start_timeout = 200ms;
  const auto start = std::chrono::steady_clock::now();
  const Status status = make_tcp_store(config).status();
  EXPECT_NE(status.code(), Code::ok);
  EXPECT_TRUE(contains(status.text(), config.host)) << status.text();
  EXPECT_TRUE(contains(status.text(), "does not resolve")) << status.text();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
}

TEST_F(TcpStoreTest, SilentAndForeignServersAreNamed) {
  Result<Listener> silent = listen_at({"127.0.0.1", 0});
  ASSERT_TRUE(silent);
  auto store = open_client(silent->port, "", 100ms);
  EXPECT_EQ(store.code(), Code::timeout);
  EXPECT_TRUE(contains(store.status().text(), "127.0.0.1:" + std::to_string(silent->port)));
  Descriptor{accept(silent->socket.get(), nullptr, nullptr)}.reset();

  auto client = std::async(std::launch::async, [&] { return open_client(silent->port); });
  ASSERT_TRUE(wait_for(silent->socket.get(), POLLIN, deadline_after(10s)));
  const Descriptor peer{accept(silent->socket.get(), nullptr, nullptr)};
  const std::string answer = "220 mail ready\r\n";
  ASSERT_GT(send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 0);
  store = client.get();
  EXPECT_EQ(store.code(), Code::invalid);
  EXPECT_TRUE(contains(store.status().text(), "no m2n store")) << store.status().text();
}

TEST_F(TcpStoreTest, APortInUseIsNamed) {
  auto server = open_server();
  ASSERT_TRUE(server);
  const std::uint16_t port = tcp_store_port(**server);
  const auto second = open_server(port);
  EXPECT_EQ(second.code(), Code::system);
  const std::string text = second.status().text();
  EXPECT_TRUE(contains(text, "127.0.0.1:" + std::to_string(port)) && contains(text, "in use") &&
              contains(text, "MASTER_PORT"))
      << text;
  // Used again at once after a job with connections.
  ASSERT_TRUE(open_client(port));
  server = Code::again;
  EXPECT_TRUE(open_server(port));
}

TEST_F(TcpStoreTest, ArgumentsAreChecked) {
  EXPECT_EQ(open_client(0).code(), Code::invalid);
  EXPECT_EQ(open_client(1, "", -1ms).code(), Code::invalid);
  TcpStoreConfig config;
  config.host = "";
  EXPECT_EQ(make_tcp_store(config).code(), Code::invalid);
  const Variables variables{{{"M2N_JOB_KEY", "file:/does/not/exist"}}};
  EXPECT_EQ(open_server().code(), Code::invalid);
  EXPECT_EQ(tcp_store_port(*make_inproc_store()), 0);
}

TEST_F(TcpStoreTest, SelfConnectionsAreSeen) {
  const ReservedPort port;
  const Descriptor self{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int on = 1;
  setsockopt(self.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in address = ReservedPort::loopback(port.number());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(bind(self.get(), generic, sizeof address), 0) << std::strerror(errno);
  ASSERT_EQ(connect(self.get(), generic, sizeof address), 0) << std::strerror(errno);
  EXPECT_TRUE(is_self_connection(self.get()));
  auto server = open_server();
  ASSERT_TRUE(server);
  const RawClient other{tcp_store_port(**server)};
  ASSERT_TRUE(other.connected());
  EXPECT_FALSE(is_self_connection(other.socket_number()));
}

TEST_F(TcpStoreTest, ALostServerEndsWaitsAtOnce) {
  auto server = open_server();
  ASSERT_TRUE(server);
  auto client = open_client(tcp_store_port(**server));
  ASSERT_TRUE(client);
  auto wait = std::async(std::launch::async,
                         [&] { return (*client)->wait("never", std::chrono::hours{1}); });
  ASSERT_TRUE((*client)->add("before", 1));
  const auto took = time_of([&] { server = Code::again; });
  EXPECT_LT(took, 1s);
  const Result<Bytes> value = wait.get();
  EXPECT_EQ(value.code(), Code::peer_failed);
  EXPECT_EQ(value.status().peer(), 0);
  EXPECT_TRUE(contains(value.status().text(), "never")) << value.status().text();
  EXPECT_LT(time_of([&] { EXPECT_EQ((*client)->get("x").code(), Code::peer_failed); }), 1s);
}

TEST_F(TcpStoreTest, RequestsOnTheirWayAreAnsweredBeforeTheEnd) {
  for (int i = 0; i < 20; ++i) {
    auto server = open_server();
    ASSERT_TRUE(server);
    RawClient client{tcp_store_port(**server)};
    ASSERT_TRUE(client.greet());
    client.send_frame(FrameType::wait, "last word", {});
    ASSERT_TRUE((*server)->set("last word", bytes_of("bye")));
    server = Code::again;
    const auto reply = client.receive(FrameSource::server);
    ASSERT_TRUE(reply) << i;
    EXPECT_EQ(text_of(reply->value), "bye");
  }
}

TEST_F(TcpStoreTest, CloseDoesNotWaitForThoseWhoDoNotRead) {
  auto server = open_server();
  ASSERT_TRUE(server);
  ASSERT_TRUE((*server)->set("big", Bytes(max_value_bytes)));
  RawClient lazy{tcp_store_port(**server)};
  ASSERT_TRUE(lazy.greet());
  lazy.send_frame(FrameType::get, "big", {});
  RawClient waiting{tcp_store_port(**server)};
  ASSERT_TRUE(waiting.greet());
  waiting.send_frame(FrameType::wait, "never", {});
  auto idle = open_client(tcp_store_port(**server));
  ASSERT_TRUE(idle);
  EXPECT_LT(time_of([&] { server = Code::again; }), 1s);
  EXPECT_LT(time_of([&] { idle = Code::again; }), 1s);
}

void ignore_signal(int) {}

TEST_F(TcpStoreTest, SignalsDoNotDisturb) {
  struct sigaction action {};
  action.sa_handler = ignore_signal;  // without SA_RESTART: calls end with EINTR
  struct sigaction before {};
  sigaction(SIGALRM, &action, &before);
  const itimerval every_ms{{0, 1000}, {0, 1000}};
  setitimer(ITIMER_REAL, &every_ms, nullptr);
  {
    auto server = open_server(0, "key");
    ASSERT_TRUE(server);
    auto client = open_client(tcp_store_port(**server), "key");
    ASSERT_TRUE(client) << client.status().text();
    const Bytes value(std::size_t{1} << 20);
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE((*client)->set("k", value));
      ASSERT_TRUE((*client)->wait("k", 20s));
    }
    EXPECT_EQ((*client)->wait("absent", 20ms).code(), Code::timeout);
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

TEST_F(TcpStoreTest, DescriptorsDoNotLeak) {
  const auto count = [] {
    std::size_t entries = 0;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
      entries += !entry.path().empty();
    }
    return entries;
  };
  const std::size_t before = count();
  for (int i = 0; i < 50; ++i) {
    auto server = open_server();
    ASSERT_TRUE(server);
    auto client = open_client(tcp_store_port(**server));
    ASSERT_TRUE(client);
    EXPECT_EQ((*client)->wait("absent", 1ms).code(), Code::timeout);
  }
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace m2n::bootstrap
