#include "transport/store_tcp_client.hpp"

#include <poll.h>

#include <algorithm>

namespace m2n::transport {

Result<StoreConnection> StoreConnection::open(const Endpoint& endpoint, std::string_view job_key,
                                              Clock::time_point deadline) {
  Result<Descriptor> socket = connect_once(endpoint, deadline);
  if (!socket) return socket.status();
  StoreConnection connection{std::move(*socket)};
  Status status = connection.shake_hands(job_key, deadline);
  // A server that goes away in the handshake may be of an earlier job: look again.
  if (status.code() == Code::closed) {
    return Status{Code::again, Scope::group, "the connection was closed during the handshake"};
  }
  if (!status) return status;
  return connection;
}

Status StoreConnection::shake_hands(std::string_view job_key, Clock::time_point deadline) {
  Hello mine;
  if (Status status = fill_random(mine.nonce); !status) return status;
  mine.has_key = !job_key.empty();
  Status status = send_frame({FrameType::hello, {}, encode_hello(mine)}, deadline);
  if (!status) return status;
  Result<StoreReply> reply = receive_frame(FrameSource::unproven_server, deadline);
  if (!reply) return reply.status();
  if (reply->type == FrameType::failure) return failure_of(*reply);
  if (reply->type != FrameType::challenge) {
    return {Code::invalid, Scope::group, "the server broke the order of the handshake"};
  }
  const Hello theirs = decode_hello(reply->value);
  if (theirs.has_key != mine.has_key) {
    return {Code::invalid, Scope::group,
            mine.has_key ? "this rank has a job key, the store at rank 0 has none"
                         : "the store wants a job key and this rank has none"};
  }
  if (mine.has_key) {
    Result<Digest> proof = store_proof(job_key, "client", mine.nonce, theirs.nonce);
    if (!proof) return proof.status();
    status = send_frame({FrameType::proof, {}, *proof}, deadline);
    if (!status) return status;
  }
  reply = receive_frame(FrameSource::unproven_server, deadline);
  if (!reply) return reply.status();
  if (reply->type == FrameType::failure) return failure_of(*reply);
  if (reply->type != FrameType::welcome) {
    return {Code::invalid, Scope::group, "the server broke the order of the handshake"};
  }
  if (!mine.has_key) return {};
  Result<Digest> wanted = store_proof(job_key, "server", mine.nonce, theirs.nonce);
  if (!wanted) return wanted.status();
  if (!equal_digests(*wanted, reply->value)) {
    return {Code::invalid, Scope::group, "the server does not have the job key of this rank"};
  }
  return {};
}

Result<StoreReply> StoreConnection::ask(const Request& request, Clock::time_point deadline) {
  if (Status status = send_frame(request, deadline); !status) return status;
  return receive_frame(FrameSource::server, deadline);
}

Status StoreConnection::send_frame(const Request& request, Clock::time_point deadline) {
  Bytes out;
  append_frame(out, request.type, request.key, request.value);
  std::span<const std::byte> left{out};
  while (!left.empty()) {
    std::size_t moved = 0;
    Status status = send_some(socket_.get(), left, &moved);
    left = left.subspan(moved);
    if (status.code() == Code::again) status = wait_for(socket_.get(), POLLOUT, deadline);
    if (!status) return status;
  }
  return {};
}

Result<StoreReply> StoreConnection::receive_frame(FrameSource source, Clock::time_point deadline) {
  for (;;) {
    const ParsedFrame parsed = parse_frame(in_, source);
    if (parsed.state == ParsedFrame::State::bad) {
      return Status{
          Code::invalid, Scope::group,
          std::string{"what answers is no m2n store of this version ("} + parsed.reason + ")"};
    }
    if (parsed.state == ParsedFrame::State::complete) {
      StoreReply reply{parsed.frame.type, {parsed.frame.value.begin(), parsed.frame.value.end()}};
      in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(parsed.frame.bytes));
      return reply;
    }
    Status status = receive_some(socket_.get(), in_, parsed.needed - in_.size());
    if (status.code() == Code::again) status = wait_for(socket_.get(), POLLIN, deadline);
    if (!status) return status;
  }
}

Status failure_of(const StoreReply& reply) {
  // An unknown code, or one that only this side may make, must not pass for success.
  const auto number = std::to_integer<std::uint8_t>(reply.value[0]);
  const auto code = static_cast<Code>(number);
  const bool known = code == Code::invalid || code == Code::exhausted || code == Code::system;
  const auto* text = reinterpret_cast<const char*>(reply.value.data()) + 1;
  return {known ? code : Code::peer_failed, Scope::group,
          std::string{text, reply.value.size() - 1}};
}

}  // namespace m2n::transport
