// The TCP store among strangers, late and lost servers, wrong keys and torn frames.
#include <gtest/gtest.h>
#include <sys/time.h>

#include <csignal>
#include <future>
#include <thread>

#include "tests/bootstrap/support.hpp"
#include "transport/hmac.hpp"
#include "transport/store_common.hpp"
#include "transport/store_tcp_socket.hpp"

namespace m2n::bootstrap {
namespace {

using namespace transport;

Result<std::shared_ptr<Store>> open_server(std::uint16_t port = 0, const std::string& key = "") {
  TcpStoreConfig config;
  config.server = true;
  config.port = port;
  config.job_key = key;
  return make_tcp_store(config);
}

Result<std::shared_ptr<Store>> open_client(std::uint16_t port, const std::string& key = "",
                                           std::chrono::milliseconds start_timeout = 20s) {
  TcpStoreConfig config;
  config.port = port;
  config.job_key = key;
  config.start_timeout = start_timeout;
  return make_tcp_store(config);
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::chrono::nanoseconds time_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::steady_clock::now() - start;
}

class TcpStoreTest : public ::testing::Test {
 protected:
  const Variables variables_{{}};
};

TEST_F(TcpStoreTest, KeysMustAgree) {
  ::testing::internal::CaptureStderr();
  auto server = open_server(0, "right");
  ASSERT_TRUE(server);
  const std::uint16_t port = tcp_store_port(**server);
  auto wrong = open_client(port, "wrong");
  EXPECT_EQ(wrong.code(), Code::invalid);
  EXPECT_TRUE(contains(wrong.status().text(), "127.0.0.1:" + std::to_string(port)) &&
              contains(wrong.status().text(), "M2N_JOB_KEY"))
      << wrong.status().text();
  EXPECT_FALSE(contains(wrong.status().text(), "right"));
  auto missing = open_client(port);
  EXPECT_EQ(missing.code(), Code::invalid);
  EXPECT_TRUE(contains(missing.status().text(), "this rank has none")) << missing.status().text();
  auto right = open_client(port, "right");
  ASSERT_TRUE(right) << right.status().text();
  EXPECT_TRUE((*right)->set("a", bytes_of("b")));
  server = Code::again;
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines_of(log), 1u) << log;
  EXPECT_TRUE(contains(log, "wrong job key")) << log;
}

TEST_F(TcpStoreTest, AServerWithoutKeyIsRefused) {
  auto server = open_server();
  ASSERT_TRUE(server);
  auto client = open_client(tcp_store_port(**server), "a key");
  EXPECT_EQ(client.code(), Code::invalid);
  EXPECT_TRUE(contains(client.status().text(), "rank 0 has none")) << client.status().text();
}

TEST_F(TcpStoreTest, TheKeyComesFromTheEnvironment) {
  const Variables variables{{{"M2N_JOB_KEY", "from outside"}}};
  auto server = open_server();
  ASSERT_TRUE(server);
  const std::uint16_t port = tcp_store_port(**server);
  EXPECT_TRUE(open_client(port));
  EXPECT_TRUE(open_client(port, "from outside"));
  EXPECT_EQ(open_client(port, "from inside").code(), Code::invalid);
}

TEST_F(TcpStoreTest, NothingIsServedBeforeTheProof) {
  auto server = open_server(0, "right");
  ASSERT_TRUE(server);
  const std::uint16_t port = tcp_store_port(**server);
  {
    RawClient at_once{port};
    at_once.send_frame(FrameType::set, "stolen", bytes_of("x"));
    EXPECT_TRUE(at_once.closed_by_server());
  }
  {
    RawClient after_hello{port};
    const auto hello = encode_hello({{}, true});
    after_hello.send_frame(FrameType::hello, {}, {hello.begin(), hello.end()});
    const auto challenge = after_hello.receive(FrameSource::unproven_server);
    ASSERT_TRUE(challenge);
    EXPECT_TRUE(decode_hello(challenge->value).has_key);
    after_hello.send_frame(FrameType::set, "stolen", bytes_of("x"));
    EXPECT_TRUE(after_hello.closed_by_server());
  }
  {  // a proof made with the other side's role, or of an empty key
    RawClient reflected{port};
    const auto hello = encode_hello({{}, true});
    reflected.send_frame(FrameType::hello, {}, {hello.begin(), hello.end()});
    const auto challenge = reflected.receive(FrameSource::unproven_server);
    ASSERT_TRUE(challenge);
    Result<Digest> proof =
        store_proof("right", "server", Nonce{}, decode_hello(challenge->value).nonce);
    ASSERT_TRUE(proof);
    reflected.send_frame(FrameType::proof, {}, {proof->begin(), proof->end()});
    const auto refusal = reflected.receive(FrameSource::unproven_server);
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->type, FrameType::failure);
    EXPECT_TRUE(reflected.closed_by_server());
  }
  EXPECT_EQ((*server)->get("stolen").code(), Code::again);
}

// A server that cannot prove the key is not believed, whatever it says.
TEST_F(TcpStoreTest, ClientsCheckTheServersProof) {
  Result<Listener> listener = listen_at({"127.0.0.1", 0});
  ASSERT_TRUE(listener);
  auto client = std::async(std::launch::async, [&] { return open_client(listener->port, "key"); });
  ASSERT_TRUE(wait_for(listener->socket.get(), 1 /*POLLIN*/, deadline_after(10s)));
  const Descriptor peer{accept(listener->socket.get(), nullptr, nullptr)};
  Bytes answers;
  append_frame(answers, FrameType::challenge, {}, encode_hello({{}, true}));
  append_frame(answers, FrameType::welcome, {}, Digest{});
  ASSERT_EQ(send(peer.get(), answers.data(), answers.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(answers.size()));
  const auto result = client.get();
  EXPECT_EQ(result.code(), Code::invalid);
  EXPECT_TRUE(contains(result.status().text(), "does not have the job key"))
      << result.status().text();
}

TEST_F(TcpStoreTest, StrangersAreDroppedAndLoggedOnce) {
  ::testing::internal::CaptureStderr();
  auto server = open_server();
  ASSERT_TRUE(server);
  const std::uint16_t port = tcp_store_port(**server);
  auto client = open_client(port);
  ASSERT_TRUE(client);
  const auto hello = encode_hello({});
  const Bytes hello_bytes{hello.begin(), hello.end()};
  Bytes frame;
  append_frame(frame, FrameType::hello, {}, hello);
  std::vector<Bytes> garbage{bytes_of("GET / HTTP/1.1\r\n\r\n"), Bytes(100), bytes_of("M2NX"),
                             Bytes(100000, std::byte{0xff})};
  for (const auto& [at, wrong] : {std::pair{4, 99}, {5, 200}, {6, 1}, {9, 255}, {12, 1}}) {
    garbage.push_back(frame);
    garbage.back()[static_cast<std::size_t>(at)] = static_cast<std::byte>(wrong);
  }
  for (const Bytes& bytes : garbage) {
    RawClient stranger{port};
    stranger.send_bytes(bytes);
    EXPECT_TRUE(stranger.closed_by_server());
    ASSERT_TRUE((*client)->set("alive", bytes));
    EXPECT_EQ((*client)->get("alive").code(), Code::ok);
  }
  RawClient twice{port};
  ASSERT_TRUE(twice.greet());
  twice.send_frame(FrameType::hello, {}, hello_bytes);
  EXPECT_TRUE(twice.closed_by_server());
  RawClient hasty{port};
  ASSERT_TRUE(hasty.greet());
  hasty.send_frame(FrameType::wait, "unset", {});
  hasty.send_frame(FrameType::get, "unset", {});
  EXPECT_TRUE(hasty.closed_by_server());
  EXPECT_TRUE((*client)->get("alive"));
  server = Code::again;
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines_of(log), 1u) << log;
}

TEST_F(TcpStoreTest, TornFramesHarmNobody) {
  auto server = open_server();
  ASSERT_TRUE(server);
  const std::uint16_t port = tcp_store_port(**server);
  Bytes frame;
  append_frame(frame, FrameType::set, "torn", bytes_of("value"));
  std::vector<std::unique_ptr<RawClient>> open_ones;
  for (std::size_t cut = 0; cut < frame.size(); ++cut) {
    auto client = std::make_unique<RawClient>(port);
    ASSERT_TRUE(client->greet());
    client->send_bytes(std::span{frame}.first(cut));
    if (cut % 2 == 0) open_ones.push_back(std::move(client));  // stays silent, the others hang up
  }
  auto client = open_client(port);
  ASSERT_TRUE(client);
  EXPECT_EQ((*client)->get("torn").code(), Code::again);
  EXPECT_TRUE((*client)->set("whole", bytes_of("value")));
}

TEST_F(TcpStoreTest, FramesMayComeByteByByte) {
  auto server = open_server();
  ASSERT_TRUE(server);
  RawClient client{tcp_store_port(**server)};
  Bytes frames;
  append_frame(frames, FrameType::hello, {}, encode_hello({}));
  append_frame(frames, FrameType::set, "slow", bytes_of("value"));
  append_frame(frames, FrameType::get, "slow", {});
  for (const std::byte& byte : frames) client.send_bytes({&byte, 1});
  ASSERT_TRUE(client.receive(FrameSource::unproven_server));
  ASSERT_TRUE(client.receive(FrameSource::unproven_server));
  const auto done = client.receive(FrameSource::server);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->type, FrameType::done);
  const auto value = client.receive(FrameSource::server);
  ASSERT_TRUE(value);
  EXPECT_EQ(text_of(value->value), "value");
}

// The first tries of a client meet somebody who hangs up, then nobody, then the server.
TEST_F(TcpStoreTest, ServersMayComeLate) {
  const ReservedPort port;
  Result<Listener> early = listen_at({"127.0.0.1", port.number()});
  ASSERT_TRUE(early) << early.status().text();
  auto client = std::async(std::launch::async, [&] { return open_client(port.number()); });
  ASSERT_TRUE(wait_for(early->socket.get(), 1 /*POLLIN*/, deadline_after(10s)));
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

TEST_F(TcpStoreTest, SilentAndForeignServersAreNamed) {
  Result<Listener> silent = listen_at({"127.0.0.1", 0});
  ASSERT_TRUE(silent);
  auto store = open_client(silent->port, "", 100ms);
  EXPECT_EQ(store.code(), Code::timeout);
  EXPECT_TRUE(contains(store.status().text(), "127.0.0.1:" + std::to_string(silent->port)));
  Descriptor{accept(silent->socket.get(), nullptr, nullptr)}.reset();

  auto client = std::async(std::launch::async, [&] { return open_client(silent->port); });
  ASSERT_TRUE(wait_for(silent->socket.get(), 1 /*POLLIN*/, deadline_after(10s)));
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

TEST(StoreFrame, SourcesMaySendWhatIsTheirs) {
  Bytes frame;
  append_frame(frame, FrameType::set, "key", bytes_of("value"));
  EXPECT_EQ(parse_frame(frame, FrameSource::client).state, ParsedFrame::State::complete);
  for (const auto source :
       {FrameSource::stranger, FrameSource::server, FrameSource::unproven_server}) {
    EXPECT_EQ(parse_frame(frame, source).state, ParsedFrame::State::bad);
  }
  for (std::size_t cut = 0; cut < frame.size(); ++cut) {
    const auto parsed = parse_frame(std::span{frame}.first(cut), FrameSource::client);
    EXPECT_EQ(parsed.state, ParsedFrame::State::incomplete);
    EXPECT_GT(parsed.needed, cut);
  }
  frame.push_back(std::byte{7});  // the next frame's
  EXPECT_EQ(parse_frame(frame, FrameSource::client).frame.bytes, frame.size() - 1);
  Bytes zero;
  append_frame(zero, FrameType::get, std::string_view{"a\0b", 3}, {});
  EXPECT_EQ(parse_frame(zero, FrameSource::client).state, ParsedFrame::State::bad);
  Bytes nameless;
  append_frame(nameless, FrameType::get, "", {});
  EXPECT_EQ(parse_frame(nameless, FrameSource::client).state, ParsedFrame::State::bad);
}

TEST(Hmac, KnownAnswers) {
  Result<Digest> digest = hmac_sha256("Jefe", bytes_of("what do ya want for nothing?"));
  ASSERT_TRUE(digest);
  EXPECT_EQ(hex(*digest), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_FALSE(equal_digests(*digest, std::span{*digest}.first(31)));
  Result<Digest> plain = sha256("abc");
  ASSERT_TRUE(plain);
  EXPECT_EQ(hex(*plain), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace m2n::bootstrap
