// Runs the ranks of a group as threads or as forked processes, with a guard that turns a hang into
// a failure which says who waits where. Used by the test's main thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "m2n/m2n.hpp"

namespace m2n::testing {

// Where a rank is, for the guard; lies in memory that parent and child share.
struct Whereabouts {
  std::atomic<const char*> what{"not started"};  // string literals only
  std::atomic<std::uint64_t> number{0};
  std::atomic<bool> done{false};
};

// What a rank's body works with.
struct Rank {
  GroupConfig config;
  std::shared_ptr<Store> store;
  Group group;  // made before the body runs, unless RankSet::bare
  Whereabouts* where = nullptr;

  void at(const char* what, std::uint64_t number = 0) const {
    where->number.store(number, std::memory_order_relaxed);
    where->what.store(what, std::memory_order_relaxed);
  }
  bool attends() const { return config.attention_rank >= 0; }
  bool serves() const { return config.expert_rank >= 0; }
  std::uint32_t attention() const { return static_cast<std::uint32_t>(config.attention_rank); }
  std::uint32_t expert() const { return static_cast<std::uint32_t>(config.expert_rank); }
};

struct RankSet {
  std::uint32_t attention = 1;
  std::uint32_t experts = 1;
  bool both = false;                // every rank has both roles; attention == experts
  std::string transport{"inproc"};  // processes need shm
  bool processes = false;
  bool bare = false;                           // no Group is made
  std::vector<std::uint32_t> world;            // role order -> world rank; empty = in order
  std::function<void(GroupConfig&)> adjust{};  // last change to a rank's configuration
  std::chrono::milliseconds guard{30'000};
};

using Body = std::function<void(Rank&)>;

// Returns when every rank's body has returned; failures in any rank fail the current test.
void run_ranks(const RankSet& set, const Body& body);

// Pinned memory that parent and children share; zeroed. Lives as long as the object.
class SharedBytes {
 public:
  explicit SharedBytes(std::size_t bytes);
  ~SharedBytes();
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(base_);
  }

 private:
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// A directory of this test's own, removed with everything in it at the end.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Open file descriptors of this process.
std::size_t count_descriptors();

}  // namespace m2n::testing
