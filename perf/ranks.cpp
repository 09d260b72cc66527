// Threads and forked processes.
#include "perf/ranks.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace m2n::perf {
namespace {

constexpr std::uint64_t patience_ns = 3'000'000'000;

struct Child {
  pid_t pid = -1;
  bool running = false;
};

int code_of(std::uint32_t rank, int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr, "m2n_perf: rank %u was ended by signal %d (%s)\n", rank, WTERMSIG(status),
               strsignal(WTERMSIG(status)));
  return 1;
}

void end_all(const std::vector<Child>& children) {
  for (const Child& child : children) {
    if (child.running) ::kill(child.pid, SIGKILL);
  }
}

// Waits for all children; a failure is told to the others, then they are ended.
int wait_all(std::vector<Child>& children, Board& board) {
  int worst = 0;
  std::uint64_t failed_at = 0;
  auto left = std::count_if(children.begin(), children.end(),
                            [](const Child& child) { return child.running; });
  bool ended = false;
  while (left > 0) {
    bool news = false;
    for (std::uint32_t rank = 0; rank < children.size(); ++rank) {
      Child& child = children[rank];
      int status = 0;
      if (!child.running || ::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.running = false;
      news = true;
      --left;
      const int code = ended ? 1 : code_of(rank, status);
      worst = std::max(worst, code);
      if (code != 0 && failed_at == 0) {
        failed_at = now_ns();
        board.fail();
      }
    }
    if (failed_at != 0 && !ended && left > 0 && now_ns() - failed_at > patience_ns) {
      ended = true;
      end_all(children);
    }
    if (!news && left > 0) ::usleep(2000);
  }
  return worst;
}

}  // namespace

int run_threads(std::uint32_t ranks, Board& board,
                const std::function<int(std::uint32_t, Board)>& rank_main) {
  std::vector<int> codes(ranks);
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      codes[rank] = rank_main(rank, board.view());
      if (codes[rank] != 0) board.fail();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(codes.begin(), codes.end());
}

int run_processes(std::uint32_t ranks, Board& board,
                  const std::function<int(std::uint32_t, Board)>& rank_main) {
  std::vector<Child> children(ranks);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      const int code = rank_main(rank, board.view());
      std::fflush(nullptr);
      ::_exit(code);
    }
    if (pid < 0) {
      std::fprintf(stderr, "m2n_perf: fork: %s\n", std::strerror(errno));
      end_all(children);
      board.fail();
      (void)wait_all(children, board);
      return 1;
    }
    children[rank] = {pid, true};
  }
  return wait_all(children, board);
}

}  // namespace m2n::perf
