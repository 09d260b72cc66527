// Hellos and meetings: what is encoded comes back, anything shorter or longer does not; a
// difference is told by field, rank and both values as soon as two ranks show it. Pure, one thread.
#include "collectives/bootstrap.hpp"

#include <gtest/gtest.h>

#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using collectives::decode;
using collectives::encode;
using collectives::Hello;
using collectives::Meeting;
using collectives::VersionRange;

std::string random_text(Random& random, std::uint32_t most) {
  std::string text(random.below(most + 1), '\0');
  for (char& c : text) c = static_cast<char>(random.below(256));
  return text;
}

Hello random_hello(Random& random) {
  Hello hello;
  hello.versions.min = random.below(3);
  hello.versions.max = hello.versions.min + random.below(3);
  hello.kind = static_cast<Hello::Kind>(random.below(3));
  hello.world_rank = static_cast<std::uint32_t>(random.next());
  hello.world_size = static_cast<std::uint32_t>(random.next());
  hello.stage = random.below(2);
  hello.peer = static_cast<std::int32_t>(random.below(100)) - 1;
  if (random.chance(3)) hello.text = random_text(random, 40);
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
    EXPECT_EQ(back->versions, hello.versions);
    EXPECT_EQ(back->kind, hello.kind);
    EXPECT_EQ(back->world_rank, hello.world_rank);
    EXPECT_EQ(back->world_size, hello.world_size);
    EXPECT_EQ(back->stage, hello.stage);
    EXPECT_EQ(back->peer, hello.peer);
    EXPECT_EQ(back->text, hello.text);
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
  for (const std::size_t number : {8, 16, 28}) {  // min > max, no such kind, no such stage
    bytes = good;
    bytes[number] = std::byte{77};
    EXPECT_EQ(decode(bytes).code(), Code::invalid) << number;
  }
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

// Rank `rank` of so many says hello, with a field that it agrees in and one that it may not.
Hello hello_of(std::uint32_t rank, std::uint32_t world, const std::string& depth = "2") {
  Hello hello;
  hello.world_rank = rank;
  hello.world_size = world;
  hello.field("hidden", 7168);
  hello.field("depth", depth);
  return hello;
}

Hello ready(std::uint32_t rank, std::uint32_t world) {
  Hello hello;
  hello.world_rank = rank;
  hello.world_size = world;
  hello.stage = 1;
  return hello;
}

Hello gave_up(std::uint32_t rank, std::uint32_t missing) {
  Hello hello = ready(rank, 0);
  hello.kind = Hello::Kind::gave_up;
  hello.text = "rank " + std::to_string(missing) + " has not come";
  hello.peer = static_cast<std::int32_t>(missing);
  return hello;
}

Meeting meeting_of(const std::vector<Hello>& hellos) {
  Meeting meeting;
  for (const Hello& hello : hellos) meeting.read(decode(encode(hello)));
  return meeting;
}

void expect_invalid(const Meeting& meeting, const std::vector<std::string>& parts) {
  EXPECT_TRUE(meeting.over());
  EXPECT_EQ(meeting.outcome().code(), Code::invalid);
  EXPECT_EQ(meeting.outcome().scope(), Scope::group);
  for (const std::string& part : parts) {
    EXPECT_NE(meeting.outcome().text().find(part), std::string::npos)
        << part << " is not in: " << meeting.outcome().text();
  }
}

TEST(Meeting, ItIsOverWhenAllAreReady) {
  for (const std::uint32_t world : {1u, 2u, 5u}) {
    Meeting meeting;
    for (std::uint32_t stage = 0; stage < Meeting::stages; ++stage) {
      for (std::uint32_t i = 0; i < world; ++i) {
        EXPECT_FALSE(meeting.over());
        EXPECT_FALSE(meeting.complete(stage));
        const std::uint32_t rank = (i + 3) % world;
        meeting.read(stage == 0 ? hello_of(rank, world) : ready(rank, world));
      }
      EXPECT_TRUE(meeting.complete(stage));
      EXPECT_EQ(meeting.hellos(stage).size(), world);
    }
    EXPECT_TRUE(meeting.over());
    EXPECT_TRUE(bool(meeting.outcome())) << meeting.outcome().text();
    EXPECT_EQ(meeting.hellos(0).back().world_rank, world - 1);
    meeting.read(gave_up(0, 0));  // too late to matter
    EXPECT_TRUE(bool(meeting.outcome()));
  }
}

TEST(Meeting, TwoThatDifferAreEnough) {
  for (const std::uint32_t first : {0u, 3u}) {
    const std::uint32_t second = 3 - first;
    const Meeting meeting = meeting_of({hello_of(first, 4, "31"), hello_of(second, 4)});
    expect_invalid(meeting, {"rank " + std::to_string(second) + ": depth = 2",
                             "rank " + std::to_string(first) + ": 31"});
    EXPECT_EQ(meeting.outcome().text().find("hidden"), std::string::npos)
        << "fields that agree are silent";
  }
}

TEST(Meeting, TheOddOneOfManyIsNamedAgainstTheOthers) {
  const Meeting meeting =
      meeting_of({hello_of(2, 5), hello_of(0, 5), hello_of(3, 5, "31"), hello_of(1, 5, "7")});
  expect_invalid(meeting, {"rank 3: depth = 31, others: 2"});
  EXPECT_EQ(meeting.outcome().peer(), 3);
  EXPECT_EQ(meeting.outcome().text().find("rank 1"), std::string::npos);
}

TEST(Meeting, EveryFieldThatDiffersIsNamed) {
  Hello odd = hello_of(1, 2, "3");
  odd.fields[0].second = "64";
  expect_invalid(meeting_of({hello_of(0, 2), odd}),
                 {"rank 1: depth = 3", "rank 0: 2", "rank 1: hidden = 64", "rank 0: 7168"});
}

// Also by a rank that would have gone ahead alone.
TEST(Meeting, WorldSizesAreCompared) {
  for (const bool small_first : {false, true}) {
    const Hello small = hello_of(0, 1);
    const Hello large = hello_of(1, 2);
    std::vector<Hello> log{large, small};
    if (small_first) log = {small, large, ready(0, 1)};
    const Meeting meeting = meeting_of(log);
    expect_invalid(meeting, {"world_size = ", "rank 0", "rank 1", "1", "2"});
  }
  EXPECT_TRUE(bool(meeting_of({hello_of(0, 1), ready(0, 1), hello_of(1, 2)}).outcome()))
      << "one that was complete stays so";
}

TEST(Meeting, ARefusalEndsIt) {
  Hello refusal;
  refusal.kind = Hello::Kind::refused;
  refusal.world_rank = 7;  // what it refuses may be its own rank
  refusal.text = "no memory";
  for (const std::vector<Hello>& log : {std::vector<Hello>{refusal},
                                        {hello_of(0, 2), refusal},
                                        {hello_of(0, 1), refusal, ready(0, 1)}}) {
    const Meeting meeting = meeting_of(log);
    expect_invalid(meeting, {});
    EXPECT_EQ(meeting.outcome().peer(), 7);
    EXPECT_EQ(meeting.outcome().text(), "rank 7 refused: no memory");
  }
}

TEST(Meeting, WhoGivesUpEndsItForAll) {
  const Meeting meeting = meeting_of({hello_of(0, 3), gave_up(0, 1), hello_of(1, 3)});
  EXPECT_TRUE(meeting.over());
  EXPECT_EQ(meeting.outcome().code(), Code::timeout);
  EXPECT_EQ(meeting.outcome().peer(), 1);
  EXPECT_EQ(meeting.outcome().text(), "rank 1 has not come");
  EXPECT_EQ(meeting_of({hello_of(1, 3)}).missing(0, 8), (std::vector<std::uint32_t>{0, 2}));
}

TEST(Meeting, TheSameRankTwiceIsNamed) {
  Hello first = hello_of(1, 4);
  first.value("process", collectives::bytes_of("10/ab"));
  Hello second = hello_of(1, 4);
  second.value("process", collectives::bytes_of("11/cd"));
  const Meeting meeting = meeting_of({first, hello_of(0, 4), second});
  expect_invalid(meeting, {"rank 1 is there twice", "10/ab", "11/cd", "world_rank"});
  EXPECT_EQ(meeting.outcome().peer(), 1);
}

Hello speaks(std::uint32_t rank, VersionRange versions) {
  Hello hello = hello_of(rank, 3);
  hello.versions = versions;
  return hello;
}

TEST(Meeting, TheGreatestCommonVersionIsUsed) {
  EXPECT_EQ(meeting_of({speaks(0, {1, 3})}).version(), 3u);
  EXPECT_EQ(meeting_of({speaks(0, {1, 3}), speaks(1, {2, 5})}).version(), 3u);
  EXPECT_EQ(meeting_of({speaks(0, {1, 3}), speaks(1, {2, 5}), speaks(2, {1, 2})}).version(), 2u);
}

TEST(Meeting, VersionsWithNothingInCommonAreNamed) {
  expect_invalid(meeting_of({speaks(0, {1, 1}), speaks(2, {2, 4})}),
                 {"rank 2 speaks wire versions 2 to 4", "rank 0 speaks wire version 1"});
  expect_invalid(meeting_of({speaks(0, {2, 3}), speaks(1, {1, 2}), speaks(2, {3, 4})}),
                 {"rank 2 speaks wire versions 3 to 4", "rank 1 speaks wire versions 1 to 2"});
  expect_invalid(meeting_of({speaks(0, {2, 3}), speaks(1, {3, 4}), speaks(2, {1, 2})}),
                 {"rank 2 speaks wire versions 1 to 2", "rank 1 speaks wire versions 3 to 4"});
}

// A field that only a later release has is no difference; in the same release it is damage.
TEST(Meeting, FurtherFieldsOfAnotherVersion) {
  Hello later = speaks(1, {1, 2});
  later.field("new", 1);
  EXPECT_FALSE(meeting_of({speaks(0, {1, 1}), later}).over());
  later.versions = {1, 1};
  expect_invalid(meeting_of({speaks(0, {1, 1}), later}), {"malformed"});
}

TEST(Meeting, WhatNoRankWouldSayIsMalformed) {
  expect_invalid(meeting_of({hello_of(2, 2)}), {"malformed", "rank 2 of 2"});
  expect_invalid(meeting_of({hello_of(0, ~0u)}), {"malformed"});
  expect_invalid(meeting_of({ready(0, 2)}), {"malformed", "before all have come"});
  expect_invalid(meeting_of({hello_of(0, 2), ready(0, 2)}), {"malformed"});
  expect_invalid(meeting_of({hello_of(0, 1), ready(0, 2)}), {"malformed"});
  Meeting meeting;
  meeting.read(decode(Bytes(5)));
  expect_invalid(meeting, {"malformed"});
}

}  // namespace
}  // namespace m2n::testing
