#include "tests/support/ranks.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <new>
#include <thread>

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<GroupConfig> configurations(const RankSet& set) {
  const std::uint32_t size = set.both ? set.attention : set.attention + set.experts;
  std::vector<GroupConfig> configs;
  for (std::uint32_t i = 0; i < size; ++i) {
    GroupConfig config =
        set.both ? GroupConfig::both(size, i) : GroupConfig::split(set.attention, set.experts, i);
    if (!set.world.empty()) config.world_rank = set.world[i];
    config.transport = set.transport;
    config.start_timeout = std::chrono::milliseconds{20'000};
    config.step_timeout = std::chrono::milliseconds{15'000};
    if (set.adjust) set.adjust(config);
    configs.push_back(std::move(config));
  }
  return configs;
}

void print_hang(const std::vector<GroupConfig>& configs, const Whereabouts* where) {
  std::fprintf(stderr, "HANG: the guard's time is over\n");
  for (std::size_t i = 0; i < configs.size(); ++i) {
    std::fprintf(stderr, "  rank %u (attention %d, expert %d): %s %llu%s\n", configs[i].world_rank,
                 configs[i].attention_rank, configs[i].expert_rank,
                 where[i].what.load(std::memory_order_relaxed),
                 static_cast<unsigned long long>(where[i].number.load(std::memory_order_relaxed)),
                 where[i].done.load() ? " (done)" : "");
  }
  std::fflush(nullptr);
}

void run_one(const RankSet& set, const GroupConfig& config, std::shared_ptr<Store> store,
             std::pair<Whereabouts*, const Body*> what) {
  {
    Rank rank{config, std::move(store), {}, what.first};
    if (!set.bare) {
      rank.at("Group::create");
      Result<Group> group = Group::create(config, rank.store);
      if (!group) {
        ADD_FAILURE() << "Group::create at rank " << config.world_rank << ": "
                      << group.status().text();
        what.first->done = true;
        return;
      }
      rank.group = std::move(*group);
    }
    rank.at("body");
    (*what.second)(rank);
    rank.at("leaving");
  }
  what.first->done = true;
}

void run_threads(const RankSet& set, const Body& body) {
  const std::vector<GroupConfig> configs = configurations(set);
  const std::shared_ptr<Store> store = make_inproc_store();
  std::vector<Whereabouts> where(configs.size());
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t running = configs.size();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    threads.emplace_back([&, i] {
      run_one(set, configs[i], store, {&where[i], &body});
      const std::lock_guard lock{mutex};
      if (--running == 0) ended.notify_one();
    });
  }
  {
    std::unique_lock lock{mutex};
    if (!ended.wait_until(lock, Clock::now() + set.guard, [&] { return running == 0; })) {
      print_hang(configs, where.data());
      std::_Exit(3);  // threads that hang cannot be ended in any other way
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void child_main(const RankSet& set, const GroupConfig& config, const std::string& directory,
                std::pair<Whereabouts*, const Body*> what) {
  Result<std::shared_ptr<Store>> store = make_file_store(directory);
  if (store) {
    run_one(set, config, std::move(*store), what);
  } else {
    ADD_FAILURE() << store.status().text();
  }
  std::fflush(nullptr);
  std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

void reap(const std::vector<GroupConfig>& configs, const std::vector<pid_t>& children,
          Clock::time_point deadline, const Whereabouts* where) {
  std::vector<bool> ended(children.size());
  std::size_t left = children.size();
  bool late = false;
  while (left > 0) {
    for (std::size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      if (ended[i] || waitpid(children[i], &status, WNOHANG) != children[i]) continue;
      ended[i] = true;
      --left;
      if (late) continue;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << configs[i].world_rank << " ended with "
          << (WIFSIGNALED(status) ? "signal " : "code ")
          << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)) << " at "
          << where[i].what.load() << ' ' << where[i].number.load();
    }
    if (!late && left > 0 && Clock::now() > deadline) {
      late = true;
      print_hang(configs, where);
      ADD_FAILURE() << "ranks hang, see above";
      for (std::size_t i = 0; i < children.size(); ++i) {
        if (!ended[i]) kill(children[i], SIGKILL);
      }
    }
    if (left > 0) std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
}

void run_processes(const RankSet& set, const Body& body) {
  const std::vector<GroupConfig> configs = configurations(set);
  const ScratchDirectory directory;
  const SharedBytes shared{configs.size() * sizeof(Whereabouts)};
  for (std::size_t i = 0; i < configs.size(); ++i) new (shared.as<Whereabouts>() + i) Whereabouts;
  std::vector<pid_t> children;
  const Clock::time_point deadline = Clock::now() + set.guard;
  std::fflush(nullptr);
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      child_main(set, configs[i], directory.path(), {shared.as<Whereabouts>() + i, &body});
    }
    if (child < 0) {
      ADD_FAILURE() << "fork failed";
      break;
    }
    children.push_back(child);
  }
  reap(configs, children, deadline, shared.as<Whereabouts>());
}

}  // namespace

void run_ranks(const RankSet& set, const Body& body) {
  set.processes ? run_processes(set, body) : run_threads(set, body);
}

SharedBytes::SharedBytes(std::size_t bytes) : bytes_{bytes} {
  base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) std::abort();
}

SharedBytes::~SharedBytes() {
  munmap(base_, bytes_);
}

ScratchDirectory::ScratchDirectory() {
  std::string pattern = std::filesystem::temp_directory_path() / "m2n-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t count_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    ++count;
  }
  return count - 1;  // the one that reads the directory
}

}  // namespace m2n::testing
