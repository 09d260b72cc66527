// A rank's process is made by fork, before this process has any thread, and ends by _exit.
#include "launch.hpp"

#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "m2n/store.hpp"
#include "ranks.hpp"

namespace moe {
namespace {

std::string run_threads(const Options& options, Reports& reports) {
  const std::shared_ptr<m2n::Store> store = m2n::make_inproc_store();
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < options.ranks(); ++r) {
    threads.emplace_back([&options, r, store, &reports] { run_rank(options, r, store, reports); });
  }
  for (std::thread& thread : threads) thread.join();
  return "";
}

// In the child. The store is a directory that all ranks can see.
void run_child(const Options& options, std::uint32_t world_rank, const std::string& directory,
               Reports& reports) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives a killed example
  m2n::Result<std::shared_ptr<m2n::Store>> store = m2n::make_file_store(directory);
  if (!store) return reports.rank(world_rank).fail("make_file_store", store.status());
  run_rank(options, world_rank, std::move(*store), reports);
}

void wait_for(pid_t child, RankReport& report) {
  int state = 0;
  if (waitpid(child, &state, 0) != child) return;
  if (WIFSIGNALED(state)) {
    report.fail("process", {m2n::Code::peer_failed, m2n::Scope::peer,
                            fmt::format("killed by signal {}", WTERMSIG(state))});
  }
}

std::string run_processes(const Options& options, Reports& reports) {
  std::string directory =
      (std::filesystem::temp_directory_path() / "m2n-moe-layer-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    return fmt::format("cannot make {}: {}", directory, std::strerror(errno));
  }
  std::fflush(nullptr);  // or each child would print what is still in the buffers
  std::vector<pid_t> children;
  std::string failure;
  for (std::uint32_t r = 0; r < options.ranks(); ++r) {
    const pid_t child = fork();
    if (child == 0) {
      run_child(options, r, directory, reports);
      _exit(0);
    }
    if (child < 0) {
      failure = fmt::format("cannot fork rank {}: {}", r, std::strerror(errno));
      for (const pid_t started : children) kill(started, SIGKILL);
      break;
    }
    children.push_back(child);
  }
  for (std::uint32_t r = 0; r < children.size(); ++r) wait_for(children[r], reports.rank(r));
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return failure;
}

}  // namespace

std::string run_ranks(const Options& options, Reports& reports) {
  return options.transport == "inproc" ? run_threads(options, reports)
                                       : run_processes(options, reports);
}

}  // namespace moe
