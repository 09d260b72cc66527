// Stores that fail or throw, once or for good, at any of their calls: create and open say so, the
// other ranks hear of it if the store lets them, and what can be tried again can.
#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <string>

#include "tests/bootstrap/meeting.hpp"

namespace m2n::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Every call first does what `before` does, which may throw.
class HookedStore : public Store {
 public:
  explicit HookedStore(std::shared_ptr<Store> inner) : inner_{std::move(inner)} {}
  Status set(std::string_view key, std::span<const std::byte> value) override {
    before();
    return inner_->set(key, value);
  }
  Result<Bytes> get(std::string_view key) override {
    before();
    return inner_->get(key);
  }
  Result<Bytes> wait(std::string_view key, std::chrono::nanoseconds timeout) override {
    before();
    return inner_->wait(key, timeout);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    before();
    return inner_->add(key, delta);
  }

 protected:
  virtual void before() {}
  std::shared_ptr<Store> inner_;
};

enum class Throws { memory, text, number };

// Throws at its k-th call, or from then on.
class ThrowingStore final : public HookedStore {
 public:
  ThrowingStore(std::shared_ptr<Store> inner, int calls_left, Throws what, bool for_good)
      : HookedStore{std::move(inner)}, calls_left_{calls_left}, what_{what}, for_good_{for_good} {}
  bool has_thrown() const { return calls_left_ < 0; }
  void heal() { calls_left_ = 1'000'000; }

 private:
  void before() override {
    const bool now = calls_left_ == 0 || (for_good_ && calls_left_ < 0);
    --calls_left_;
    if (!now) return;
    if (what_ == Throws::memory) throw std::bad_alloc{};
    if (what_ == Throws::number) throw 7;
    throw std::runtime_error{"a store of one's own"};
  }
  int calls_left_;
  Throws what_;
  bool for_good_;
};

void expect_caught(const Status& status, const char* function, Throws what) {
  switch (what) {
    case Throws::memory:
      return expect_says(status, Code::exhausted, {function, "memory"});
    case Throws::text:
      return expect_says(status, Code::system, {function, "a store of one's own"});
    case Throws::number:
      return expect_says(status, Code::system, {function, "exception = of an unknown type"});
  }
}

// False once the store has not come to throw.
bool open_with(const std::shared_ptr<ThrowingStore>& store, Throws what) {
  std::string log;
  GroupConfig config = GroupConfig::both(1, 0);
  config.log = [&log](LogLevel, std::int32_t, std::string_view text) { log += text; };
  Result<Group> group = Group::create(config, store);
  Result<Channel> channel = group ? group->open(small_channel()) : group.status();
  const bool thrown = store->has_thrown();
  if (channel && thrown) {
    EXPECT_NE(log.find("the store has not taken"), std::string::npos) << "no call but that one";
  }
  if (!channel) {
    EXPECT_TRUE(thrown);
    expect_caught(channel.status(), group ? "open: " : "create: ", what);
  }
  if (!channel && group) {  // the next opening has another place
    store->heal();
    channel = group->open(small_channel());
    EXPECT_TRUE(bool(channel)) << channel.status().text();
  }
  return thrown;
}

TEST(StoreFault, ExceptionsBecomeAStatusAtEveryCall) {
  for (const bool for_good : {false, true}) {
    for (const Throws what : {Throws::memory, Throws::text, Throws::number}) {
      bool thrown = true;
      for (int k = 0; thrown && !HasFailure(); ++k) {
        SCOPED_TRACE("call " + std::to_string(k) + (for_good ? " and all after it" : ""));
        ASSERT_LT(k, 100);
        thrown = open_with(std::make_shared<ThrowingStore>(make_inproc_store(), k, what, for_good),
                           what);
      }
    }
  }
}

TEST(StoreFault, OtherRanksHearOfAnException) {
  run_ranks(bare(1, 1), [&](Rank& rank) {
    std::shared_ptr<Store> store = rank.store;
    // A call inside the meeting.
    if (rank.config.world_rank == 0)
      store = std::make_shared<ThrowingStore>(store, 6, Throws::memory, false);
    const Status status = Group::create(rank.config, store).status();
    if (rank.config.world_rank == 0) {
      expect_caught(status, "create: ", Throws::memory);
    } else {
      expect_says(status, Code::invalid, {"rank 0 refused: create: memory"});
    }
  });
}

// Takes no value of a key with `part` in it that is longer than `most`.
class SmallStore final : public HookedStore {
 public:
  SmallStore(std::shared_ptr<Store> inner, std::string part, std::size_t most, bool throws)
      : HookedStore{std::move(inner)}, part_{std::move(part)}, most_{most}, throws_{throws} {}
  Status set(std::string_view key, std::span<const std::byte> value) override {
    if (key.find(part_) == std::string_view::npos || value.size() <= most_)
      return inner_->set(key, value);
    if (throws_) throw std::runtime_error{"the disk is full"};
    return {Code::system, Scope::operation, "the disk is full"};
  }

 private:
  std::string part_;
  std::size_t most_;
  bool throws_;
};

// An index was taken, but what belongs there is not written: the others do not wait for it.
TEST(StoreFault, AHelloThatIsNotTakenLeavesNoHole) {
  for (const bool throws : {false, true}) {
    run_ranks(bare(2, 1), [&](Rank& rank) {
      std::shared_ptr<Store> store = rank.store;
      const bool faulty = rank.config.world_rank == 1;
      if (faulty) store = std::make_shared<SmallStore>(store, "/log/", 300, throws);
      const Clock::time_point start = Clock::now();
      const Status status = Group::create(rank.config, store).status();
      faulty ? expect_says(status, Code::system, {"the disk is full"})
             : expect_says(status, Code::invalid, {"rank 1 refused", "has not taken"});
      EXPECT_LT(Clock::now() - start, 5s);
    });
  }
}

// What is only noted for the next group cannot make this one fail, which all others have.
TEST(StoreFault, AGroupIsUpThoughItsNumberCouldNotBeNoted) {
  for (const bool throws : {false, true}) {
    run_ranks(bare(1, 1), [&](Rank& rank) {
      std::shared_ptr<Store> store = rank.store;
      GroupConfig config = rank.config;
      std::string log;
      config.log = [&log](LogLevel, std::int32_t, std::string_view text) { log += text; };
      if (config.world_rank == 1) store = std::make_shared<SmallStore>(store, "/next/", 0, throws);
      for (int i = 0; i < 2; ++i) {
        const Result<Group> group = Group::create(config, store);
        EXPECT_TRUE(bool(group)) << group.status().text();
      }
      EXPECT_EQ(log.find("the disk is full") != std::string::npos, config.world_rank == 1) << log;
    });
  }
}

}  // namespace
}  // namespace m2n::testing
