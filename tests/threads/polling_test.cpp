// Loops over the try_ forms: no system call per call. The counted part runs in a child whose
// thread hands every system call to a signal handler that counts it.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <vector>

#include "tests/threads/lanes.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
TEST(Polling, IsNotForSanitizers) {
  GTEST_SKIP() << "their runtimes call the system; and the handler knows one kind of machine";
}
#else
namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;

volatile std::uint64_t system_calls = 0;

// The call is refused: nothing here may need one.
void on_system_call(int, siginfo_t*, void* context) {
  system_calls = system_calls + 1;
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = -ENOSYS;
}

bool watch_system_calls() {
  struct sigaction action {};
  action.sa_sigaction = on_system_call;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return false;
  // Ending, returning from the handler, and the clock of machines that have none in user space.
  constexpr std::uint32_t allowed[] = {SYS_exit_group, SYS_rt_sigreturn, SYS_clock_gettime};
  std::array<sock_filter, std::size(allowed) + 3> program{};
  program[0] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);  // seccomp_data::nr
  for (std::size_t i = 0; i < std::size(allowed); ++i) {
    const auto jump = static_cast<std::uint8_t>(std::size(allowed) - i);
    program[i + 1] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], jump, 0);
  }
  program[std::size(allowed) + 1] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
  program[std::size(allowed) + 2] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

enum Exit { good, not_set_up, not_again, too_many };

int poll_all(const char* transport, int calls) {
  GroupConfig config = GroupConfig::both(1, 0);
  config.transport = transport;
  Result<Group> group = Group::create(config, make_inproc_store());
  Result<Channel> channel = group ? group->open(lane_config(1)) : group.status();
  if (!channel) return not_set_up;
  Result<Ticket> ticket = send(*channel, 1);  // not answered: its combine has to wait
  Result<Batch> batch = channel->receive();   // so the next receive has to
  if (!ticket || !batch || !watch_system_calls()) return not_set_up;
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < calls; ++i) {
    if (channel->try_receive().code() != Code::again) return not_again;
    if (channel->try_combine(*ticket, {out.data()}).code() != Code::again) return not_again;
    if (!channel->progress() || !group->progress()) return not_again;
  }
  // Whether peers live is asked every 5 ms at most, for one peer here.
  const auto checks =
      static_cast<std::uint64_t>((Clock::now() - start) / std::chrono::milliseconds{5});
  return system_calls <= checks + 2 ? good : too_many;
}

int poll_in_child(const char* transport, int calls) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::_Exit(poll_all(transport, calls));
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Polling, MakesNoSystemCallPerCall) {
  for (const char* transport : {"inproc", "shm"})
    EXPECT_EQ(poll_in_child(transport, 20'000), good) << transport;
}

TEST(Polling, TheCounterCounts) {
  const pid_t child = fork();
  if (child == 0) {
    if (!watch_system_calls()) std::_Exit(not_set_up);
    syscall(SYS_getppid);
    std::_Exit(system_calls == 1 ? 0 : 9);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace m2n::testing
#endif
