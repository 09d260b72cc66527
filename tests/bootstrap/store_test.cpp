// What every store must do, over all of them.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <limits>
#include <set>
#include <thread>

#include "tests/bootstrap/support.hpp"
#include "transport/store_common.hpp"

namespace m2n::bootstrap {
namespace {

// The stores of one job: each rank opens its own view.
class StoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { first_ = open(0); }

  std::shared_ptr<Store> open(std::uint32_t rank) {
    if (GetParam() == "inproc") return first_ ? first_ : make_inproc_store();
    if (GetParam() == "file") return value_of(make_file_store(directory_.path() + "/new/store"));
    TcpStoreConfig config;
    config.server = rank == 0;
    config.port = rank == 0 ? std::uint16_t{0} : tcp_store_port(*first_);
    if (GetParam() == "tcp_key") config.job_key = "open sesame";
    config.start_timeout = 20s;
    return value_of(make_tcp_store(config));
  }

  static std::shared_ptr<Store> value_of(Result<std::shared_ptr<Store>> store) {
    EXPECT_TRUE(store) << store.status().text();
    return store ? *store : make_inproc_store();
  }

  const Variables variables_{{}};
  TemporaryDirectory directory_;
  std::shared_ptr<Store> first_;
};

TEST_P(StoreTest, SetGetReplace) {
  const auto second = open(1);
  EXPECT_EQ(second->get("a").code(), Code::again);
  ASSERT_TRUE(first_->set("a", bytes_of("one")));
  Result<Bytes> value = second->get("a");
  ASSERT_TRUE(value) << value.status().text();
  EXPECT_EQ(text_of(*value), "one");
  ASSERT_TRUE(second->set("a", bytes_of("second")));
  EXPECT_EQ(text_of(*first_->wait("a", 5s)), "second");
  ASSERT_TRUE(second->set("a", {}));
  value = first_->get("a");
  ASSERT_TRUE(value);
  EXPECT_TRUE(value->empty());
}

TEST_P(StoreTest, KeysOfAllKindsStayApart) {
  const auto second = open(1);
  std::vector<std::string> keys{"a/b", "a%2fb", "a%2Fb", "../a", ".",       "..",       "lock",
                                "A",   "a",     "k-a",   "a\n",  "a b",     "\xc3\xa4", "a\x01",
                                "%",   "h-a",   "t-1",   "a/",   "opened-0"};
  for (const char last : {'x', 'y'}) {
    keys.push_back(std::string(511, '/') + last);
    keys.push_back(std::string(511, 'a') + last);
  }
  for (const std::string& key : keys) ASSERT_TRUE(first_->set(key, bytes_of("<" + key + ">")));
  for (const std::string& key : keys) {
    Result<Bytes> value = second->get(key);
    ASSERT_TRUE(value) << key << ": " << value.status().text();
    EXPECT_EQ(text_of(*value), "<" + key + ">");
  }
}

TEST_P(StoreTest, SizesAreBounded) {
  const auto second = open(1);
  for (const auto& store : {first_, second}) {
    EXPECT_EQ(store->set("", bytes_of("v")).code(), Code::invalid);
    EXPECT_EQ(store->get(std::string(513, 'k')).code(), Code::invalid);
    EXPECT_EQ(store->wait(std::string_view{"a\0b", 3}, 1ms).code(), Code::invalid);
    EXPECT_EQ(store->add("", 1).code(), Code::invalid);
    const Status status = store->set("big", Bytes(transport::max_value_bytes + 1));
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_TRUE(contains(status.text(), "big") && contains(status.text(), "16777216"));
  }
  Bytes largest(transport::max_value_bytes);
  for (std::size_t i = 0; i < largest.size(); ++i) largest[i] = static_cast<std::byte>(i * 31 >> 3);
  ASSERT_TRUE(second->set("big", largest));
  EXPECT_TRUE(*first_->get("big") == largest);
  EXPECT_TRUE(*second->wait("big", 20s) == largest);
}

TEST_P(StoreTest, ReadersMayComeFirst) {
  constexpr int readers = 4;
  std::vector<std::shared_ptr<Store>> stores;
  for (std::uint32_t rank = 1; rank <= readers; ++rank) stores.push_back(open(rank));
  std::barrier ready{readers + 1};
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (const auto& store : stores) {
    threads.emplace_back([&, store] {
      ready.arrive_and_wait();
      Result<Bytes> value = store->wait("late", 20s);
      right += value && text_of(*value) == "here";
    });
  }
  ready.arrive_and_wait();
  // While they wait, others are served, also through the very same store.
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(stores[0]->set("other", bytes_of("x")));
    ASSERT_TRUE(stores[1]->get("other"));
    ASSERT_TRUE(first_->add("count", 1));
  }
  ASSERT_TRUE(stores[2]->set("late", bytes_of("here")));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, readers);
}

TEST_P(StoreTest, AWaitThatEndsNamesTheKey) {
  const auto second = open(1);
  for (const auto& store : {first_, second}) {
    for (const std::chrono::nanoseconds limit : {0ns, -5ns, std::chrono::nanoseconds{30ms}}) {
      const auto start = std::chrono::steady_clock::now();
      const Result<Bytes> value = store->wait("never set", limit);
      const auto took = std::chrono::steady_clock::now() - start;
      EXPECT_EQ(value.code(), Code::timeout);
      EXPECT_TRUE(contains(value.status().text(), "never set")) << value.status().text();
      EXPECT_GE(took, limit);
      EXPECT_LT(took, 10s);
    }
    EXPECT_TRUE(store->set("used after", bytes_of("a timeout")));
    EXPECT_TRUE(store->wait("used after", std::chrono::nanoseconds::max()));
  }
}

TEST_P(StoreTest, CountersAreAtomic) {
  constexpr int ranks = 4;
  constexpr int rounds = 40;
  std::vector<std::vector<std::int64_t>> sums(ranks);
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<Store>> stores;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) stores.push_back(rank == 0 ? first_ : open(1));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < rounds; ++i) {
        Result<std::int64_t> sum = stores[rank]->add("counter", 3);
        if (sum) sums[rank].push_back(*sum);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::int64_t> seen;
  for (const auto& list : sums) seen.insert(list.begin(), list.end());
  EXPECT_EQ(seen.size(), ranks * rounds);
  EXPECT_EQ(*seen.begin(), 3);
  EXPECT_EQ(*seen.rbegin(), 3 * ranks * rounds);
  EXPECT_EQ(*first_->get("counter"), transport::counter_bytes(3 * ranks * rounds));
}

TEST_P(StoreTest, CountersRefuseWhatIsNone) {
  const auto second = open(1);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(*second->add("c", -7), -7);
  EXPECT_EQ(*first_->add("c", 7), 0);
  EXPECT_EQ(*second->add("c", most), most);
  const Result<std::int64_t> overflow = second->add("c", 1);
  EXPECT_EQ(overflow.code(), Code::invalid);
  EXPECT_EQ(*first_->add("c", 0), most);
  ASSERT_TRUE(first_->set("text", bytes_of("seven")));
  const Result<std::int64_t> wrong = second->add("text", 1);
  EXPECT_EQ(wrong.code(), Code::invalid);
  EXPECT_TRUE(contains(wrong.status().text(), "text")) << wrong.status().text();
  EXPECT_EQ(text_of(*first_->get("text")), "seven");
}

INSTANTIATE_TEST_SUITE_P(All, StoreTest, ::testing::Values("inproc", "file", "tcp", "tcp_key"),
                         [](const auto& test) { return test.param; });

TEST(FileStore, MakesAPrivateDirectoryAndLeavesNoTemporaryFiles) {
  const TemporaryDirectory directory;
  Result<std::shared_ptr<Store>> store = make_file_store(directory.path() + "/s/");
  ASSERT_TRUE(store) << store.status().text();
  const auto status = std::filesystem::status(directory.path() + "/s");
  EXPECT_EQ(status.permissions(), std::filesystem::perms::owner_all);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE((*store)->set("k", bytes_of("v")));
  for (const auto& entry : std::filesystem::directory_iterator{directory.path() + "/s"}) {
    EXPECT_NE(entry.path().filename().string().rfind("t-", 0), 0u) << entry.path();
    EXPECT_EQ(entry.status().permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
}

TEST(FileStore, SaysWhichDirectoryItCannotUse) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  ASSERT_TRUE(transport::replace_small_file(path, {}));
  for (const std::string& wrong : {path, path + "/below"}) {
    const auto store = make_file_store(wrong);
    EXPECT_EQ(store.code(), Code::system);
    EXPECT_TRUE(contains(store.status().text(), wrong) &&
                contains(store.status().text(), "M2N_STORE"))
        << store.status().text();
  }
  EXPECT_EQ(make_file_store("").code(), Code::invalid);
}

TEST(FileStore, AKeyWhoseFileIsNoFileIsAnError) {
  const TemporaryDirectory directory;
  Result<std::shared_ptr<Store>> store = make_file_store(directory.path());
  ASSERT_TRUE(store);
  std::filesystem::create_directory(directory.path() + "/k-odd");
  const Result<Bytes> value = (*store)->wait("odd", 5s);
  EXPECT_EQ(value.code(), Code::system);
  EXPECT_TRUE(contains(value.status().text(), "odd")) << value.status().text();
}

}  // namespace
}  // namespace m2n::bootstrap
