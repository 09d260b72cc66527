// The TCP store among strangers: wrong keys, other services, torn and forged frames.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <future>

#include "tests/bootstrap/store_tcp_support.hpp"
#include "transport/hmac.hpp"
#include "transport/store_common.hpp"
#include "transport/store_tcp_socket.hpp"

namespace m2n::bootstrap {
namespace {

using namespace transport;

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

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
  ASSERT_TRUE(wait_for(listener->socket.get(), POLLIN, deadline_after(10s)));
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
