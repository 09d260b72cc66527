// The contract of a transport, on one thread: data, counting, limits and ids. Every test runs over
// every transport, bare and wrapped.
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "tests/transport/rig.hpp"

namespace m2n::testing {
namespace {

using namespace m2n::transport;

class Contract : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, Contract, ::testing::ValuesIn(all_kinds()), name_of);

TEST_P(Contract, SaysWhatItCanDo) {
  auto transport = make_transport(GetParam(), {"job", 0, 0});
  const Capabilities can = transport->capabilities();
  EXPECT_EQ(transport->name(), GetParam().transport);
  EXPECT_EQ(can.mapped, GetParam().decorator.empty());
  EXPECT_GE(can.max_segments, 8u);
  EXPECT_GE(can.max_in_flight, 1u);
  EXPECT_FALSE(can.needs_progress);
}

TEST_P(Contract, MemoryIsZeroedAlignedAndWritable) {
  auto transport = make_transport(GetParam(), {"job", 0, 0});
  for (const bool huge : {false, true}) {
    const auto memory = transport->add_memory({nullptr, 3u << 20, huge});
    ASSERT_TRUE(memory) << memory.status().text();
    std::byte* base = transport->local(*memory);
    ASSERT_NE(base, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(base) % 4096, 0u);
    for (std::size_t i = 0; i < 3u << 20; i += 509) ASSERT_EQ(base[i], std::byte{0});
    std::memset(base, 1, 3u << 20);
    transport->drop_memory(*memory);
    EXPECT_EQ(transport->local(*memory), nullptr);
  }
}

// Puts of random pieces to random places; the whole window is compared with a model.
TEST_P(Contract, DataIsExact) {
  auto ranks = make_endpoints(GetParam(), 2);
  const std::uint32_t max_segments = ranks[0].transport->capabilities().max_segments;
  std::mt19937_64 random{3};
  for (std::size_t i = 0; i < window_bytes; ++i) ranks[0].source_base()[i] = pattern(1, i);
  std::vector<std::byte> model(window_bytes);
  for (std::uint32_t round = 0; round < 100; ++round) {
    std::vector<Segment> segments(round % (max_segments + 1));
    std::size_t total = 0;
    for (Segment& segment : segments) {
      segment = {ranks[0].source, random() % (window_bytes - 2000), random() % 2000};
      total += segment.bytes;
    }
    const std::size_t offset =
        payload_offset + random() % (window_bytes - payload_offset - total + 1);
    std::size_t at = offset;
    for (const Segment& segment : segments) {
      std::memcpy(model.data() + at, ranks[0].source_base() + segment.offset, segment.bytes);
      at += segment.bytes;
    }
    ASSERT_TRUE(ranks[0].put(1, segments, offset, round % words));
    const std::uint64_t expected = round / words + 1;
    ASSERT_TRUE(wait_until(&ranks[0],
                           [&] { return load_acquire(ranks[1].word(round % words)) == expected; }));
    ASSERT_EQ(std::memcmp(ranks[1].window_base() + payload_offset, model.data() + payload_offset,
                          window_bytes - payload_offset),
              0)
        << "round " << round;
  }
}

TEST_P(Contract, ReachesBothEndsOfAWindow) {
  auto ranks = make_endpoints(GetParam(), 2);
  ranks[0].source_base()[0] = std::byte{42};
  ranks[0].source_base()[window_bytes - 1] = std::byte{43};
  const Segment last{ranks[0].source, window_bytes - 1, 1};
  ASSERT_TRUE(ranks[0].put(1, {&last, 1}, window_bytes - 1, words - 1));
  ASSERT_TRUE(wait_until(&ranks[0], [&] { return load_acquire(ranks[1].word(words - 1)) == 1; }));
  EXPECT_EQ(ranks[1].window_base()[window_bytes - 1], std::byte{43});
}

TEST_P(Contract, WordsCountPuts) {
  auto ranks = make_endpoints(GetParam(), 3);
  std::map<std::pair<std::size_t, std::uint32_t>, std::uint64_t> counts;
  std::mt19937_64 random{5};
  const Segment piece{ranks[0].source, 0, 100};
  for (int i = 0; i < 1000; ++i) {
    const std::size_t to = random() % 3;  // itself too
    const std::uint32_t word = random() % words;
    const bool bare = random() % 2 == 0;
    ASSERT_TRUE(ranks[0].put(to, {&piece, bare ? 0u : 1u}, payload_offset, word));
    ++counts[{to, word}];
  }
  ASSERT_TRUE(wait_until(&ranks[0], [&] {
    for (const auto& [key, count] : counts) {
      if (load_acquire(ranks[key.first].word(key.second)) != count) return false;
    }
    return true;
  }));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(ranks[0].pump());
  for (std::size_t to = 0; to < 3; ++to) {
    for (std::uint32_t word = 0; word < words; ++word) {
      const auto found = counts.find({to, word});
      ASSERT_EQ(load_acquire(ranks[to].word(word)), found == counts.end() ? 0 : found->second);
    }
  }
}

// A bare signal writes nothing but its word, and needs no target.
TEST_P(Contract, ABareSignalMovesNoBytes) {
  auto ranks = make_endpoints(GetParam(), 2);
  const Segment nothing{ranks[0].source, 0, 0};
  ASSERT_TRUE(ranks[0].transport->put(ranks[0].peers[1], {}, {}, ranks[0].signal(1, 3), 1));
  ASSERT_TRUE(ranks[0].put(1, {&nothing, 1}, 0, 3));
  ASSERT_TRUE(wait_until(&ranks[0], [&] { return load_acquire(ranks[1].word(3)) == 2; }));
  for (std::size_t i = 0; i < window_bytes; ++i) {
    const bool signalled = i / 8 == 3 * 64 / 8;
    ASSERT_TRUE(signalled || ranks[1].window_base()[i] == std::byte{0}) << i;
  }
}

// Every accepted token comes back exactly once and `again` leaves no trace.
TEST_P(Contract, AgainMeansNothingHappened) {
  auto ranks = make_endpoints(GetParam(), 2);
  Transport& transport = *ranks[0].transport;
  const std::uint32_t limit = transport.capabilities().max_in_flight;
  std::set<std::uint64_t> open;
  std::uint64_t agains = 0;
  std::uint64_t accepted = 0;
  // Wrappers hold some puts beside those of the wrapped transport.
  for (std::uint64_t token = 0; token < 3u * limit && agains < 3; ++token) {
    const Status status = transport.put(ranks[0].peers[1], {}, {ranks[0].windows[1], 0},
                                        ranks[0].signal(1, 0), token);
    if (status.code() == Code::again) {
      ++agains;
      continue;
    }
    ASSERT_TRUE(status) << status.text();
    open.insert(token);
    ++accepted;
  }
  EXPECT_GE(agains, 3u);
  EXPECT_LE(accepted, 2u * limit);
  std::array<Completion, 7> done;
  ASSERT_TRUE(wait_until(nullptr, [&] {
    const std::size_t count = transport.progress(done);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(done[i].status);
      EXPECT_EQ(open.erase(done[i].token), 1u);
    }
    return open.empty();
  }));
  EXPECT_EQ(load_acquire(ranks[1].word(0)), accepted);
}

// Refused at once, or by a completion where a wrapper took it first; nothing is written either way.
TEST_P(Contract, RefusesWhatDoesNotFit) {
  auto ranks = make_endpoints(GetParam(), 2);
  Endpoint& self = ranks[0];
  const RemoteId window = self.windows[1];
  const Segment one{self.source, 0, 16};
  const std::vector<Segment> many(self.transport->capabilities().max_segments + 1, one);
  const Segment beyond{self.source, window_bytes - 8, 16};
  const Segment wraps{self.source, ~std::size_t{0} - 3, 16};
  const Segment unknown{MemoryId{77}, 0, 16};
  const SignalRef good{window, self.table, 0};
  struct Case {
    std::span<const Segment> segments;
    Target to;
    SignalRef signal;
  };
  const std::vector<Case> cases{
      {many, {window, payload_offset}, good},
      {{&beyond, 1}, {window, payload_offset}, good},
      {{&wraps, 1}, {window, payload_offset}, good},
      {{&unknown, 1}, {window, payload_offset}, good},
      {{&one, 1}, {window, window_bytes - 8}, good},
      {{&one, 1}, {window, ~std::size_t{0} - 3}, good},
      {{&one, 1}, {RemoteId{99}, payload_offset}, good},
      {{&one, 1}, {self.windows[0], payload_offset}, good},  // another peer's
      {{&one, 1}, {window, payload_offset}, {window, self.table, words}},
      {{&one, 1}, {window, payload_offset}, {window, self.table + 1, 0}},
      {{&one, 1}, {window, payload_offset}, {RemoteId{99}, self.table, 0}},
      {{&one, 1}, {window, payload_offset}, {self.windows[0], self.table, 0}},
  };
  std::memset(self.source_base(), 0xff, window_bytes);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Status status = Code::again;
    while (status.code() == Code::again) {
      status =
          self.transport->put(self.peers[1], cases[i].segments, cases[i].to, cases[i].signal, i);
    }
    for (int n = 0; status && n < 100; ++n) status = self.pump();
    EXPECT_EQ(status.code(), Code::invalid) << "case " << i;
    EXPECT_NE(status.text().find("put"), std::string::npos) << status.text();
  }
  for (std::size_t i = 0; i < window_bytes; ++i) {
    ASSERT_EQ(ranks[1].window_base()[i], std::byte{0}) << i;
    ASSERT_TRUE(i < payload_offset || ranks[0].window_base()[i] == std::byte{0}) << i;
  }
}

TEST_P(Contract, RefusesBadMemoryAndSignals) {
  auto transport = make_transport(GetParam(), {"job", 0, 0});
  EXPECT_EQ(transport->add_memory({nullptr, 0}).code(), Code::invalid);
  EXPECT_EQ(transport->add_memory({nullptr, ~std::size_t{0}}).code(), Code::invalid);
  const auto memory = transport->add_memory({nullptr, 4096});
  ASSERT_TRUE(memory);
  const std::size_t huge = ~std::size_t{0} / 8 * 8;
  EXPECT_TRUE(transport->add_signals(*memory, 4088, 0, 1));
  EXPECT_TRUE(transport->add_signals(*memory, 0, 8, 512));
  EXPECT_EQ(transport->add_signals(*memory, 0, 8, 513).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(*memory, 8, 8, 512).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(*memory, 4, 8, 1).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(*memory, 0, 12, 2).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(*memory, 0, 0, 2).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(*memory, 0, 8, 0).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(*memory, huge, 8, 1).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(*memory, 8, huge, 3).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(MemoryId{55}, 0, 8, 1).code(), Code::invalid);
  std::array<std::byte, 64> own{};
  const auto given = transport->add_memory({own.data(), own.size()});
  ASSERT_TRUE(given);
  EXPECT_EQ(transport->local(*given), own.data());
  EXPECT_EQ(transport->export_memory(*given).code(), Code::invalid);
  EXPECT_EQ(transport->add_signals(*given, 0, 8, 1).code(), Code::invalid);
}

TEST_P(Contract, SendsFromTheCallersMemory) {
  auto ranks = make_endpoints(GetParam(), 2);
  std::vector<std::byte> own(1000);
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = pattern(8, i);
  const auto memory = ranks[0].transport->add_memory({own.data(), own.size()});
  ASSERT_TRUE(memory);
  const std::array<Segment, 2> halves{Segment{*memory, 500, 500}, Segment{*memory, 0, 500}};
  ASSERT_TRUE(ranks[0].put(1, halves, payload_offset, 0));
  ASSERT_TRUE(wait_until(&ranks[0], [&] { return load_acquire(ranks[1].word(0)) == 1; }));
  for (std::size_t i = 0; i < own.size(); ++i) {
    ASSERT_EQ(ranks[1].window_base()[payload_offset + i], pattern(8, (i + 500) % 1000));
  }
}

TEST_P(Contract, DropsAreIdempotentAndStaleIdsFindNothing) {
  auto ranks = make_endpoints(GetParam(), 2);
  Transport& transport = *ranks[0].transport;
  transport.drop_memory(ranks[0].source);
  transport.drop_memory(ranks[0].source);
  const auto fresh = transport.add_memory({nullptr, 64});
  ASSERT_TRUE(fresh);
  EXPECT_NE(*fresh, ranks[0].source);
  transport.drop_memory(ranks[0].source);
  EXPECT_NE(transport.local(*fresh), nullptr);
  transport.drop_remote(ranks[0].windows[1]);
  transport.drop_remote(ranks[0].windows[1]);
  EXPECT_FALSE(ranks[0].put(1, {}, 0, 0) && wait_until(&ranks[0], [] { return false; }));
  transport.disconnect(ranks[0].peers[1]);
  transport.disconnect(ranks[0].peers[1]);
  transport.notify(ranks[0].peers[1]);
  transport.seal_memory(ranks[0].source);
  EXPECT_EQ(load_acquire(ranks[1].word(0)), 0u);
}

// The owner may be gone: what was imported stays mapped until it is dropped.
TEST_P(Contract, ImportsOutliveTheirOwner) {
  auto ranks = make_endpoints(GetParam(), 2);
  const Segment piece{ranks[0].source, 0, 4096};
  ranks[1].transport.reset();
  ASSERT_TRUE(ranks[0].put(1, {&piece, 1}, payload_offset, 0));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(ranks[0].pump());
  ranks[0].transport->notify(ranks[0].peers[1]);
}

TEST_P(Contract, RefusesStrangeBlobs) {
  auto owner = make_endpoint(make_transport(GetParam(), {"contract", 0, 0}));
  auto other = make_transport(GetParam(), {"contract", 1, 0});
  const Blob address = owner.transport->address();
  const auto peer = other->connect(address);
  ASSERT_TRUE(peer) << peer.status().text();
  for (std::size_t size = 0; size < address.size(); ++size) {
    EXPECT_FALSE(other->connect(std::span{address}.first(size)));
  }
  for (std::size_t size = 0; size < owner.window_blob.size(); ++size) {
    EXPECT_FALSE(other->import_memory(*peer, std::span{owner.window_blob}.first(size)));
  }
  Blob longer = address;
  longer.push_back(std::byte{0});
  EXPECT_EQ(other->connect(longer).code(), Code::invalid);
  EXPECT_EQ(other->connect(owner.window_blob).code(), Code::invalid);
  EXPECT_EQ(other->import_memory(*peer, address).code(), Code::invalid);
  auto stranger = make_transport(GetParam(), {"another job", 1, 0});
  const auto refused = stranger->connect(address);
  EXPECT_EQ(refused.code(), Code::invalid);
  EXPECT_NE(refused.status().text().find("another job"), std::string::npos)
      << refused.status().text();
}

TEST_P(Contract, ASealedMemoryCannotBeImported) {
  auto ranks = make_endpoints(GetParam(), 1);
  const auto late = ranks[0].transport->import_memory(ranks[0].peers[0], ranks[0].window_blob);
  EXPECT_EQ(late.code(), Code::peer_failed);
  EXPECT_NE(late.status().text().find("rank 0"), std::string::npos) << late.status().text();
}

TEST(OpenTransport, NamesTheKnownOnes) {
  const auto opened = open_transport("carrier-pigeon", {"job", 4, 0});
  ASSERT_EQ(opened.code(), Code::invalid);
  for (const char* part : {"carrier-pigeon", "inproc", "shm", "rank 4"}) {
    EXPECT_NE(opened.status().text().find(part), std::string::npos) << opened.status().text();
  }
}

}  // namespace
}  // namespace m2n::testing
