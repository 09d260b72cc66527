// Hellos: what is encoded comes back, anything shorter or longer does not, and a difference is told
// by field, rank and both values, alike on every rank. Pure, one thread.
#include "collectives/bootstrap.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using collectives::compare;
using collectives::decode;
using collectives::encode;
using collectives::Hello;

std::string random_text(Random& random, std::uint32_t most) {
  std::string text(random.below(most + 1), '\0');
  for (char& c : text) c = static_cast<char>(random.below(256));
  return text;
}

Hello random_hello(Random& random) {
  Hello hello;
  hello.world_rank = static_cast<std::uint32_t>(random.next());
  if (random.chance(3)) hello.refusal = random_text(random, 40);
  for (std::uint32_t i = random.below(5); i > 0; --i) {
    hello.field(random_text(random, 12), random_text(random, 20));
  }
  for (std::uint32_t i = random.below(5); i > 0; --i) {
    Bytes bytes(random.below(60));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    hello.value(random_text(random, 12), std::move(bytes));
  }
  return hello;
}

TEST(Bootstrap, WhatIsEncodedComesBack) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random{seed};
    const Hello hello = random_hello(random);
    const Result<Hello> back = decode(encode(hello));
    ASSERT_TRUE(bool(back)) << back.status().text();
    EXPECT_EQ(back->world_rank, hello.world_rank);
    EXPECT_EQ(back->refusal, hello.refusal);
    EXPECT_EQ(back->fields, hello.fields);
    EXPECT_EQ(back->values, hello.values);
  }
}

TEST(Bootstrap, CutOffAtAnyByteItIsRefused) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random{seed};
    const Bytes bytes = encode(random_hello(random));
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      const Result<Hello> cut = decode({bytes.data(), n});
      ASSERT_FALSE(bool(cut)) << "seed " << seed << ", " << n << " of " << bytes.size();
      EXPECT_EQ(cut.code(), Code::invalid);
    }
    Bytes longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(bool(decode(longer)));
  }
}

TEST(Bootstrap, ForeignBytesAreRefusedForWhatTheyAre) {
  Hello hello;
  const Bytes good = encode(hello);
  Bytes bytes = good;
  bytes[0] ^= std::byte{1};
  EXPECT_NE(decode(bytes).status().text().find("not one of m2n"), std::string::npos);
  bytes = good;
  std::swap(bytes[4], bytes[7]);
  EXPECT_NE(decode(bytes).status().text().find("byte order"), std::string::npos);
  bytes = good;
  bytes[8] = std::byte{77};
  EXPECT_NE(decode(bytes).status().text().find("wire version 77"), std::string::npos);
}

TEST(Bootstrap, DamagedBytesNeverCrash) {
  Random random{5};
  for (int i = 0; i < 3000; ++i) {
    Bytes bytes = encode(random_hello(random));
    for (std::uint32_t n = random.between(1, 4); n > 0; --n) {
      bytes[random.below(static_cast<std::uint32_t>(bytes.size()))] =
          static_cast<std::byte>(random.chance(2) ? 255 : random.below(256));
    }
    const Result<Hello> decoded = decode(bytes);
    if (!decoded) {
      EXPECT_EQ(decoded.code(), Code::invalid);
    }
  }
}

// Ranks 0..n-1 that say depth = the given values, and agree in another field.
std::vector<Hello> hellos(const std::vector<std::string>& depths) {
  std::vector<Hello> all(depths.size());
  for (std::uint32_t rank = 0; rank < depths.size(); ++rank) {
    all[rank].world_rank = rank;
    all[rank].field("hidden", 7168);
    all[rank].field("depth", depths[rank]);
  }
  return all;
}

TEST(Bootstrap, EqualHellosAgree) {
  EXPECT_TRUE(bool(compare(hellos({"2"}))));
  EXPECT_TRUE(bool(compare(hellos({"2", "2", "2"}))));
}

TEST(Bootstrap, TheOddOneIsNamedWithBothValues) {
  for (std::uint32_t odd = 0; odd < 4; ++odd) {
    std::vector<std::string> depths(4, "2");
    depths[odd] = "31";
    const Status status = compare(hellos(depths));
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_NE(status.text().find("rank " + std::to_string(odd) + ": depth = 31"), std::string::npos)
        << status.text();
    EXPECT_NE(status.text().find("others: 2"), std::string::npos) << status.text();
    EXPECT_EQ(status.text().find("hidden"), std::string::npos) << "fields that agree are silent";
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      if (rank != odd) {
        EXPECT_EQ(status.text().find("rank " + std::to_string(rank)), std::string::npos);
      }
    }
  }
}

TEST(Bootstrap, EveryFieldAndEveryRankThatDiffersIsNamed) {
  std::vector<Hello> all = hellos({"2", "3", "2", "4", "2"});
  all[2].fields[0].second = "64";
  const std::string text = compare(all).text();
  for (const char* part :
       {"rank 1: depth = 3", "rank 3: depth = 4", "rank 2: hidden = 64", "others: 7168"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

TEST(Bootstrap, ATieNamesTheHigherRank) {
  const Status status = compare(hellos({"2", "3"}));
  EXPECT_NE(status.text().find("rank 1: depth = 3, others: 2"), std::string::npos) << status.text();
}

TEST(Bootstrap, ARefusalComesFirst) {
  std::vector<Hello> all = hellos({"2", "3", "2"});
  all[2].refusal = "no memory";
  const Status status = compare(all);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_EQ(status.peer(), 2);
  EXPECT_EQ(status.text(), "rank 2 refused: no memory");
}

TEST(Bootstrap, EveryRankReadsTheSameText) {
  const std::shared_ptr<Store> store = make_inproc_store();
  const std::vector<Hello> all = hellos({"2", "7", "2"});
  std::vector<std::string> texts(3);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const collectives::Stage stage{store.get(), "stage", 3, std::chrono::seconds{20}};
      texts[rank] = collectives::exchange(stage, all[rank]).status().text();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(texts[0].find("rank 1: depth = 7, others: 2"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST(Bootstrap, AnotherNumberOfFieldsIsMalformed) {
  std::vector<Hello> all = hellos({"2", "2"});
  all[1].fields.pop_back();
  EXPECT_EQ(compare(all).code(), Code::invalid);
}

}  // namespace
}  // namespace m2n::testing
