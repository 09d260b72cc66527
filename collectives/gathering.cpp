#include "collectives/gathering.hpp"

#include <algorithm>
#include <utility>

namespace m2n::collectives {
namespace {

using Clock = std::chrono::steady_clock;

// How long a rank that has given up waits for entries before its own: they are there, unless their
// writer has died between two calls of the store.
constexpr std::chrono::seconds patience{1};

std::string list_text(const std::vector<std::uint32_t>& ranks, std::size_t count) {
  std::string text = count == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (count > ranks.size()) text += " and " + std::to_string(count - ranks.size()) + " more";
  return text;
}

}  // namespace

Gathering::Gathering(Setup setup) : setup_{std::move(setup)} {
  constexpr std::chrono::hours year{24 * 365};
  end_ = Clock::now() + (setup_.timeout.count() == 0 ? year : setup_.timeout);
}

Hello Gathering::with_self(Hello hello, std::uint32_t stage) const {
  hello.versions = setup_.self.versions;
  hello.world_rank = setup_.self.world_rank;
  hello.world_size = setup_.self.world_size;
  hello.stage = stage;
  return hello;
}

Result<std::vector<Hello>> Gathering::enter(Hello hello) {
  if (Status status = join(with_self(std::move(hello), 0)); !status) return status;
  return meeting_.hellos(0);
}

Result<std::vector<Hello>> Gathering::ready(Hello hello) {
  Result<std::uint64_t> mine = append(with_self(std::move(hello), 1));
  if (!mine) return mine.status();
  if (Status status = read_until(1, *mine); !status) return status;
  return meeting_.hellos(1);
}

// This rank reports its own refusal; a store that does not take it, or throws as it may have
// before, changes nothing about that.
void Gathering::refuse(const std::string& why) noexcept {
  try {
    Hello hello = with_self({}, 0);
    hello.kind = Hello::Kind::refused;
    hello.text = why;
    gave_up_ = Status{Code::timeout};  // it reads what is there
    end_ = Clock::now();
    if (joined_) {
      static_cast<void>(append(hello));
    } else {
      static_cast<void>(join(hello));
    }
  } catch (...) {  // the others give up at their deadlines
  }
}

void Gathering::part() noexcept {
  try {
    wait_until_heard();
  } catch (...) {  // who has not heard gives up at its deadline
  }
}

void Gathering::wait_until_heard() {
  if (!joined_) return;
  Store& store = *setup_.store;
  const std::string heard = place() + "/heard";
  if (tcp_store_port(store) == 0) {
    const Result<std::int64_t> count = store.add(heard, 1);
    if (count) static_cast<void>(store.set(heard + "/" + std::to_string(*count), {}));
    return;
  }
  const auto end = Clock::now() + std::chrono::milliseconds{500};
  for (std::uint32_t other = 1; other < setup_.self.world_size; ++other) {
    const auto left = end - Clock::now();
    if (left.count() <= 0 || !store.wait(heard + "/" + std::to_string(other), left)) return;
  }
}

// Finds the meeting that this rank takes part in: the first that was not over when it came. What
// was refused, however, every rank is told once, in order, however late it comes.
Status Gathering::join(const Hello& hello) {
  for (;; ++setup_.number) {
    meeting_ = Meeting{};
    read_ = 0;
    Result<std::uint64_t> mine = append(hello);
    if (!mine) return mine.status();
    Status status = read_until(0, *mine);
    const bool late = meeting_.over() && read_ <= *mine;
    if (!late || status.code() == Code::invalid) return status;
    if (meeting_.outcome()) {
      earlier_ = "; one with world_size = " + std::to_string(meeting_.world_size()) +
                 " came up before without this process";
    }
  }
}

Result<std::uint64_t> Gathering::append(const Hello& hello) {
  const std::string log = place() + "/log";
  const Bytes entry = encode(hello);
  Result<std::int64_t> count = setup_.store->add(log, 1);
  if (!count) return count.status();
  joined_ = true;
  const auto index = static_cast<std::uint64_t>(*count - 1);
  Hole hole{*this, log + "/" + std::to_string(index)};
  Status status = setup_.store->set(hole.key, entry);
  hole.filled = bool{status};
  if (!status) return status;
  return index;
}

// Nobody reads beyond an index without an entry. A short one may fit where the hello did not.
Gathering::Hole::~Hole() {
  if (filled) return;
  try {
    Hello hello = of.with_self({}, 0);
    hello.kind = Hello::Kind::refused;
    hello.text = of.setup_.what + ": the store has not taken what this rank says";
    static_cast<void>(of.setup_.store->set(key, encode(hello)));
  } catch (...) {  // then the others wait for their deadlines
  }
}

// Reads until all have reached the stage, this rank among them, or the meeting is over. At the
// deadline this rank gives up, which is an entry like any other: if all were ready before it, they
// are.
Status Gathering::read_until(std::uint32_t stage, std::uint64_t mine) {
  while (!meeting_.over() && (read_ <= mine || !meeting_.complete(stage))) {
    const Result<Bytes> bytes = next_entry();
    if (bytes) {
      meeting_.read(decode(*bytes));
      ++read_;
      continue;
    }
    if (bytes.code() != Code::timeout && bytes.code() != Code::again) return bytes.status();
    if (gave_up_) return *gave_up_;
    const Hello last = giving_up(stage);
    gave_up_ = Status{Code::timeout, Scope::group, last.text, last.peer};
    end_ = Clock::now() + patience;
    if (Result<std::uint64_t> told = append(last); !told) return told.status();
  }
  return meeting_.over() ? meeting_.outcome() : Status{};
}

Result<Bytes> Gathering::next_entry() {
  const std::string key = place() + "/log/" + std::to_string(read_);
  const auto left = end_ - Clock::now();
  return left.count() > 0 ? setup_.store->wait(key, left) : setup_.store->get(key);
}

Hello Gathering::giving_up(std::uint32_t stage) const {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const std::vector<std::uint32_t> missing = meeting_.missing(stage, 8);
  Hello hello = with_self({}, stage);
  hello.kind = Hello::Kind::gave_up;
  hello.text = setup_.what + ": ";
  if (missing.empty()) {
    hello.text += "a rank that has come has not said which one it is";
  } else {
    hello.peer = static_cast<std::int32_t>(missing.front());
    hello.text += list_text(missing, meeting_.world_size() - meeting_.present(stage));
    hello.text += stage == 0 ? " has not come" : " has come and is not ready";
  }
  hello.text += " within " + std::to_string(duration_cast<milliseconds>(setup_.timeout).count()) +
                " ms" + earlier_;
  if (!missing.empty() && setup_.about) hello.text += setup_.about(missing.front());
  hello.text += " (rank " + std::to_string(setup_.self.world_rank) +
                " gave up; see GroupConfig::start_timeout or M2N_START_TIMEOUT_MS)";
  return hello;
}

Meeting look(Store& store, const std::string& place) {
  Meeting meeting;
  for (std::uint64_t index = 0;; ++index) {
    const Result<Bytes> bytes = store.get(place + "/log/" + std::to_string(index));
    if (!bytes) return meeting;
    meeting.read(decode(*bytes));
  }
}

}  // namespace m2n::collectives
