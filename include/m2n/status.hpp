// What went wrong, and how much has to be thrown away to recover. Values, never exceptions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace m2n {

enum class Code : std::uint8_t {
  ok,
  again,        // nothing happened; call again later (only from try_ forms)
  timeout,      // the deadline passed; the object stays usable
  cancelled,    // this end was closed while the call was open
  closed,       // this end, or the peer's, has been closed
  aborted,      // abort() was called
  peer_failed,  // a peer died or broke the protocol
  invalid,      // an argument or configuration is wrong; nothing was sent
  exhausted,    // no credit, or a capacity given by the user is too small
  unavailable,  // the operation ended, but some tokens miss some experts
  system,       // the operating system refused something
};

// The radius of the damage. Callers branch on this to decide what must be rebuilt.
enum class Scope : std::uint8_t { operation, peer, group };

// "ok", "timeout", ... for messages and logs.
constexpr const char* name(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::again:
      return "again";
    case Code::timeout:
      return "timeout";
    case Code::cancelled:
      return "cancelled";
    case Code::closed:
      return "closed";
    case Code::aborted:
      return "aborted";
    case Code::peer_failed:
      return "peer_failed";
    case Code::invalid:
      return "invalid";
    case Code::exhausted:
      return "exhausted";
    case Code::unavailable:
      return "unavailable";
    case Code::system:
      return "system";
  }
  return "unknown";
}

// The result of a call. `text` names function, argument, actual value, allowed values, rank and the
// setting to change. A Status made from a code alone allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Code code) noexcept : code_{code} {}
  Status(Code code, Scope scope, std::string text, std::int32_t peer = -1)
      : code_{code}, scope_{scope}, peer_{peer}, text_{std::move(text)} {}

  explicit operator bool() const noexcept { return code_ == Code::ok; }
  Code code() const noexcept { return code_; }
  Scope scope() const noexcept { return scope_; }
  // World rank of the peer that is concerned, or -1.
  std::int32_t peer() const noexcept { return peer_; }
  const std::string& text() const noexcept { return text_; }

 private:
  Code code_ = Code::ok;
  Scope scope_ = Scope::operation;
  std::int32_t peer_ = -1;
  std::string text_;
};

// A value or the Status that says why there is none. `*result` needs `if (result)` first.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_{std::in_place_index<0>, std::move(value)} {}
  Result(Status status) : state_{std::in_place_index<1>, std::move(status)} {}
  Result(Code code) : state_{std::in_place_index<1>, Status{code}} {}

  explicit operator bool() const noexcept { return state_.index() == 0; }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  // The failure, or ok.
  Status status() const { return state_.index() == 0 ? Status{} : std::get<1>(state_); }
  Code code() const noexcept { return state_.index() == 0 ? Code::ok : std::get<1>(state_).code(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace m2n
