// I-60: after warm-up a round allocates nothing and calls the system for nothing while it spins,
// with routing that changes from round to round. The counted part runs in a child of its own, whose
// kernel interface is closed (seccomp strict: any call but read, write and exit kills it).
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define M2N_TEST_SANITIZED 1
#endif

#ifndef M2N_TEST_SANITIZED
// Every allocation of this program goes through here; glibc supports the replacement.
namespace {
thread_local bool counting = false;
std::atomic<std::uint64_t> allocations{0};
void count_allocation() {
  if (counting) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* old, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
void __libc_free(void* memory);

void* malloc(std::size_t bytes) {
  count_allocation();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  count_allocation();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  count_allocation();
  return __libc_realloc(old, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  count_allocation();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  count_allocation();
  return __libc_memalign(alignment, bytes);
}
void free(void* memory) {
  if (memory != nullptr) count_allocation();
  __libc_free(memory);
}
}

namespace m2n::testing {
namespace {

constexpr std::uint32_t tokens = 32, hidden = 128, top_k = 4, experts = 16, routings = 10;

struct Kind {
  Layout layout = Layout::rows;
  ExchangeKind exchange = ExchangeKind::push;
  Presence presence = Presence::every;
  Combine combine = Combine::reduced;
  const char* transport = "inproc";
  enum class Spoil { nothing, allocation, system_call } spoil = Spoil::nothing;
};

ChannelConfig channel_of(const Kind& kind) {
  ChannelConfig config = usual_channel(experts, top_k, hidden, tokens);
  config.layout = kind.layout;
  config.exchange = kind.exchange;
  config.presence = kind.presence;
  config.combine = kind.combine;
  return config;
}

// Everything a rank hands over, made before the counted part.
struct Buffers {
  std::vector<std::uint16_t> x, y, out;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;

  Buffers() : x(tokens * hidden), y(tokens * top_k * hidden), out(tokens * hidden) {
    Random random{60};
    for (std::uint32_t i = 0; i < routings * tokens; ++i) {
      for (std::uint32_t k = 0; k < top_k; ++k) {
        ids.push_back(static_cast<std::int32_t>((random.below(4) + 4 * k)));
        weights.push_back(0.25f);
      }
    }
  }
};

bool attend(Channel& channel, Buffers& buffers, std::uint32_t round) {
  Dispatch arguments;
  arguments.tokens = round % (tokens + 1);
  arguments.x = {buffers.x.data()};
  if (channel.config().exchange == ExchangeKind::shared && round % 2 == 0 && arguments.tokens > 0) {
    const Result<ArenaBlock> block = channel.arena_acquire(arguments.tokens);
    if (!block) return false;
    arguments.x = {block->base, block->row_stride_bytes};
  }
  const std::size_t at = std::size_t{round % routings} * tokens * top_k;
  arguments.ids = ExpertIds{buffers.ids.data() + at};
  arguments.weights = RoutingWeights{buffers.weights.data() + at};
  Result<Ticket> ticket = channel.dispatch(arguments);
  return ticket && channel.combine(*ticket, {buffers.out.data()});
}

// `wait` false: the batch must be there.
bool serve_batch(Channel& channel, Buffers& buffers) {
  Result<Batch> batch = channel.receive();
  if (!batch) return false;
  if (channel.config().layout != Layout::rows) {
    return bool(channel.reply(*batch, Outputs{batch->grouped().base}));
  }
  const std::array<Outputs, 1> outputs{Outputs{buffers.y.data()}};
  return bool(channel.reply(*batch, outputs));
}

// From here on this thread may only end, say why, and read the clock (which a machine without a
// clock in user space does through the kernel).
void close_kernel() {
  constexpr std::uint32_t allowed[] = {SYS_write, SYS_exit, SYS_exit_group, SYS_clock_gettime};
  std::array<sock_filter, std::size(allowed) + 3> program{};
  program[0] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);  // seccomp_data::nr
  for (std::size_t i = 0; i < std::size(allowed); ++i) {
    const auto jump = static_cast<std::uint8_t>(std::size(allowed) - i);
    program[i + 1] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], jump, 0);
  }
  program[std::size(allowed) + 1] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  program[std::size(allowed) + 2] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::_Exit(6);
  }
}

[[noreturn]] void leave(bool good) {
  static_cast<void>(write(STDOUT_FILENO, good ? "" : "round failed\n", good ? 0 : 13));
  std::_Exit(good ? 0 : 1);
}

// Two threads with one role each, spinning. Every thread closes its own kernel interface.
void counted_part(const Kind& kind) {
  RankSet set;
  set.transport = kind.transport;
  set.adjust = [](GroupConfig& config) { config.wait = Wait::spin; };
  const std::shared_ptr<Store> store = make_inproc_store();
  constexpr std::uint32_t warm_up = 20, rounds = 40;
  std::atomic<int> warm{0}, done{0};
  std::atomic<bool> good{true};
  const auto body = [&](std::uint32_t world_rank) {
    GroupConfig group_config = GroupConfig::split(1, 1, world_rank);
    set.adjust(group_config);
    group_config.transport = kind.transport;
    Result<Group> group = Group::create(group_config, store);
    Result<Channel> channel = group ? group->open(channel_of(kind)) : group.status();
    if (!channel) std::_Exit(4);
    Buffers buffers;
    const auto go = [&](std::uint32_t from, std::uint32_t to) {
      for (std::uint32_t round = from; round < to && good.load(); ++round) {
        // In touched mode an empty operation reaches nobody: both sides know the counts.
        if (kind.presence == Presence::touched && round % (tokens + 1) == 0 && world_rank == 1) {
          continue;
        }
        if (!(world_rank == 0 ? attend(*channel, buffers, round)
                              : serve_batch(*channel, buffers))) {
          good = false;
        }
      }
    };
    go(0, warm_up);
    ++warm;
    while (warm.load() < 2) {
    }
    close_kernel();
    counting = true;
    go(warm_up, warm_up + rounds);
    if (kind.spoil == Kind::Spoil::allocation) free(malloc(1));
    if (kind.spoil == Kind::Spoil::system_call) syscall(SYS_getppid);
    counting = false;
    if (++done == 1) {
      while (done.load() < 2) {
      }
      syscall(SYS_exit, 0);  // the other one tells
    }
    leave(good.load() && allocations.load() == 0);
  };
  std::thread expert{body, 1};
  body(0);
  expert.join();
}

// How the child ended, as waitpid() tells it.
int status_of(const Kind& kind) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // the guard
    counted_part(kind);
    std::_Exit(5);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

void expect_quiet(const Kind& kind) {
  const int status = status_of(kind);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status)
                                 << (WTERMSIG(status) == SIGSYS ? ": a system call" : "");
  EXPECT_EQ(WEXITSTATUS(status), 0) << "a round allocated or failed";
}

TEST(I60, TheCountersCount) {
  Kind kind;
  kind.spoil = Kind::Spoil::allocation;
  const int allocated = status_of(kind);
  EXPECT_TRUE(WIFEXITED(allocated) && WEXITSTATUS(allocated) == 1);
  kind.spoil = Kind::Spoil::system_call;
  const int called = status_of(kind);
  EXPECT_TRUE(WIFSIGNALED(called) && WTERMSIG(called) == SIGSYS);
}

TEST(I60, RowsInEveryMode) {
  for (const char* transport : {"inproc", "shm"}) {
    for (const ExchangeKind exchange : {ExchangeKind::push, ExchangeKind::shared}) {
      for (const Presence presence : {Presence::every, Presence::touched}) {
        for (const Combine combine : {Combine::reduced, Combine::per_expert}) {
          SCOPED_TRACE(std::string{transport} +
                       (exchange == ExchangeKind::shared ? " shared" : "") +
                       (presence == Presence::touched ? " touched" : "") +
                       (combine == Combine::per_expert ? " per_expert" : ""));
          expect_quiet({Layout::rows, exchange, presence, combine, transport});
        }
      }
    }
  }
}

TEST(I60, GroupedAndPacked) {
  for (const Layout layout : {Layout::grouped, Layout::packed}) {
    expect_quiet({layout});
    expect_quiet({layout, ExchangeKind::shared});
  }
}

}  // namespace
}  // namespace m2n::testing
#else
TEST(I60, IsNotForSanitizers) {
  GTEST_SKIP() << "their runtimes allocate and call the system";
}
#endif
