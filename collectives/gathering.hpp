// One rank's way through a meeting (bootstrap.hpp) over a store: it appends its hellos to a log
// that all ranks read from the beginning. Set-up only, blocking, one thread.
//
// A meeting that failed is followed by the next one, under the next number, so that ranks which try
// again meet again. docs/wire.md has the keys and the rules.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives/bootstrap.hpp"

namespace m2n::collectives {

class Gathering {
 public:
  struct Setup {
    Store* store = nullptr;
    std::string key;                      // of the meetings with one purpose: key/0, key/1, ...
    std::uint64_t number = 0;             // the first one that this rank has not been to
    std::string what;                     // "create: group \"m2n\"", for texts
    Hello self;                           // versions, rank and world size of every hello
    std::chrono::nanoseconds timeout{0};  // for everything from now on; 0 = never
    // What else is known about a rank that has not come. May be empty.
    std::function<std::string(std::uint32_t world_rank)> about{};
  };
  explicit Gathering(Setup setup);

  // What all ranks say, by world rank: first who they are, then that they are ready. A failure ends
  // the meeting on all ranks; ok from ready() means that it is ok on all ranks.
  Result<std::vector<Hello>> enter(Hello hello);
  Result<std::vector<Hello>> ready(Hello hello);
  // Tells the others that this rank cannot go on, and why, as far as the store lets it. Waits for
  // nobody.
  void refuse(const std::string& why) noexcept;

  // After a failure. The rank that serves the store may end its process next: it waits, for half a
  // second at most, until the others have heard of it.
  void part() noexcept;

  // Of this meeting, and its place in the store. Valid once enter() or refuse() was called.
  std::uint64_t number() const noexcept { return setup_.number; }
  std::string place() const { return setup_.key + "/" + std::to_string(setup_.number); }
  const Meeting& meeting() const noexcept { return meeting_; }

 private:
  // An index of the log without an entry, filled whatever happens.
  struct Hole {
    Gathering& of;
    std::string key;
    bool filled = false;
    ~Hole();
  };

  Status join(const Hello& hello);
  Result<std::uint64_t> append(const Hello& hello);
  void wait_until_heard();
  Status read_until(std::uint32_t stage, std::uint64_t mine);
  Result<Bytes> next_entry();
  Hello giving_up(std::uint32_t stage) const;
  Hello with_self(Hello hello, std::uint32_t stage) const;

  Setup setup_;
  std::chrono::steady_clock::time_point end_;
  bool joined_ = false;  // has taken an index of the log
  std::optional<Status> gave_up_;
  Meeting meeting_;
  std::uint64_t read_ = 0;  // entries of the log
  std::string earlier_;     // a meeting without this rank that succeeded
};

// What the log of a meeting says so far. Waits for nothing.
Meeting look(Store& store, const std::string& place);

}  // namespace m2n::collectives
