// The stores between processes: forked ranks in odd orders, and ranks under real launchers.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <functional>

#include "m2n/launch.hpp"
#include "tests/bootstrap/support.hpp"

namespace m2n::bootstrap {
namespace {

pid_t fork_rank(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  return child;
}

int exit_code(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// Meets the others twice; says in its exit code where it failed.
int meet(Store& store, std::uint32_t rank, std::uint32_t ranks) {
  for (int round = 0; round < 2; ++round) {
    const std::string prefix = "round" + std::to_string(round) + "/";
    if (!store.set(prefix + std::to_string(rank), bytes_of(prefix))) return 11;
    for (std::uint32_t other = 0; other < ranks; ++other) {
      Result<Bytes> value = store.wait(prefix + std::to_string(other), 20s);
      if (!value) return 12;
      if (text_of(*value) != prefix) return 13;
    }
    for (int i = 0; i < 25; ++i) {
      if (!store.add("sum", 1)) return 14;
    }
    Result<std::int64_t> in = store.add(prefix + "in", 1);
    if (!in) return 15;
    if (*in == ranks && !store.set(prefix + "all", {})) return 16;
    // Rank 0 may serve: it leaves last.
    if (rank == 0 && !store.wait(prefix + "all", 20s)) return 17;
  }
  return 0;
}

class ProcessTest : public ::testing::TestWithParam<std::string> {
 protected:
  Launch launch_of(std::uint32_t rank, std::uint32_t ranks) const {
    Launch launch;
    launch.world_rank = rank;
    launch.world_size = ranks;
    launch.source = "M2N_STORE";
    launch.store = GetParam() == "file" ? "file:" + directory_.path() + "/store"
                                        : "tcp://127.0.0.1:" + std::to_string(port_.number());
    return launch;
  }
  const Variables variables_{{{"M2N_JOB_KEY", "between processes"}}};
  const TemporaryDirectory directory_;
  const ReservedPort port_;
};

// Each rank is forked, in every order of three, only when the one before has said that it started.
TEST_P(ProcessTest, AnyStartOrder) {
  constexpr std::uint32_t ranks = 3;
  std::vector<std::uint32_t> order{0, 1, 2};
  do {
    std::error_code ignored;
    std::filesystem::remove_all(directory_.path() + "/store", ignored);
    std::vector<pid_t> children;
    for (const std::uint32_t rank : order) {
      int started[2];
      ASSERT_EQ(pipe(started), 0);
      children.push_back(fork_rank([&] {
        if (write(started[1], "s", 1) != 1) return 9;
        auto store = open_store(launch_of(rank, ranks));
        return store ? meet(**store, rank, ranks) : 10;
      }));
      char byte = 0;
      EXPECT_EQ(read(started[0], &byte, 1), 1);
      close(started[0]);
      close(started[1]);
    }
    for (const pid_t child : children) EXPECT_EQ(exit_code(child), 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

// A forked child that drops or uses the store of its parent does no harm to it.
TEST_P(ProcessTest, ForksLeaveTheStoreAlone) {
  auto server = open_store(launch_of(0, 2));
  ASSERT_TRUE(server) << server.status().text();
  auto client = open_store(launch_of(1, 2));
  ASSERT_TRUE(client) << client.status().text();
  ASSERT_TRUE((*client)->set("a", bytes_of("b")));
  const pid_t child = fork_rank([&] {
    if (GetParam() == "tcp" && (*server)->get("a").code() != Code::invalid) return 1;
    Result<Bytes> value = (*client)->get("a");
    if (!value || text_of(*value) != "b") return 2;
    server = Code::again;
    client = Code::again;
    return 0;
  });
  EXPECT_EQ(exit_code(child), 0);
  EXPECT_EQ(text_of(*(*client)->get("a")), "b");
  EXPECT_TRUE((*server)->get("a"));
}

// A killed rank 0 ends the waits of the others; a killed client is forgotten.
TEST_P(ProcessTest, KilledRanks) {
  if (GetParam() == "file") GTEST_SKIP() << "nobody serves a file store";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t server = fork_rank([&] {
    auto store = open_store(launch_of(0, 2));
    if (!store || write(ready[1], "s", 1) != 1) return 1;
    for (;;) pause();
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const pid_t victim = fork_rank([&] {
    auto store = open_store(launch_of(1, 2));
    if (!store || !(*store)->set("v", bytes_of("1")) || write(ready[1], "s", 1) != 1) return 1;
    const Result<Bytes> value = (*store)->wait("never", std::chrono::hours{1});
    return value ? 2 : 3;
  });
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  auto store = open_store(launch_of(1, 2));
  ASSERT_TRUE(store);
  kill(victim, SIGKILL);
  EXPECT_EQ(exit_code(victim), 1000 + SIGKILL);
  EXPECT_TRUE((*store)->get("v"));
  kill(server, SIGKILL);
  EXPECT_EQ(exit_code(server), 1000 + SIGKILL);
  EXPECT_EQ((*store)->wait("never", std::chrono::hours{1}).code(), Code::peer_failed);
  close(ready[0]);
  close(ready[1]);
}

INSTANTIATE_TEST_SUITE_P(All, ProcessTest, ::testing::Values("file", "tcp"),
                         [](const auto& test) { return test.param; });

struct Output {
  int code = -1;
  std::string text;
};

Output run(const std::string& command) {
  Output output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  char piece[4096];
  std::size_t got = 0;
  while ((got = fread(piece, 1, sizeof piece, pipe)) > 0) output.text.append(piece, got);
  output.code = pclose(pipe);
  return output;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

struct Launcher {
  const char* name;
  const char* options;
  const char* source;
};

class LauncherTest : public ::testing::TestWithParam<Launcher> {
 protected:
  void SetUp() override {
    const std::string name = GetParam().name;
    if (run("command -v " + name).code != 0) GTEST_SKIP() << name << " is not installed";
  }
  std::string start(int ranks, const std::string& program) const {
    const std::string base = std::string{GetParam().name} + " " + GetParam().options + " -n ";
    return "timeout 60 " + base + std::to_string(ranks) + " " + program;
  }
  static std::size_t job_directories(const TemporaryDirectory& directory) {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator{directory.path()}) {
      count += entry.path().filename().string().rfind("m2n-job-", 0) == 0 ? 1 : 0;
    }
    return count;
  }
  const TemporaryDirectory directory_;
  const Variables variables_{{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                              {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                              {"TMPDIR", directory_.path()}}};
};

TEST_P(LauncherTest, RanksFindEachOther) {
  const Output output = run(start(3, BOOTSTRAP_RANK));
  EXPECT_EQ(output.code, 0) << output.text;
  for (const char* rank : {"0", "1", "2"}) {
    const std::string line =
        "rank " + std::string{rank} + " of 3, local " + rank + ", from " + GetParam().source + "\n";
    EXPECT_EQ(count_of(output.text, line), 1u) << output.text;
  }
  EXPECT_EQ(job_directories(directory_), 0u);
}

// A shell between launcher and rank, and two programs one after the other in one launch.
TEST_P(LauncherTest, WrappersAndSeveralPrograms) {
  const std::string program = BOOTSTRAP_RANK;
  const Output output = run(start(3, "sh -c '" + program + " && " + program + "'"));
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_EQ(count_of(output.text, "of 3,"), 6u) << output.text;
  EXPECT_EQ(job_directories(directory_), 0u);
}

TEST_P(LauncherTest, TcpStoreFromTheEnvironment) {
  const ReservedPort port;
  const Output output = run("MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port.number()) +
                            " M2N_JOB_KEY=k " + start(3, BOOTSTRAP_RANK));
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_EQ(count_of(output.text, "of 3,"), 3u) << output.text;
}

TEST_P(LauncherTest, WrongWorldSizeIsFound) {
  const Output output = run("WORLD_SIZE=4 " + start(2, BOOTSTRAP_RANK));
  EXPECT_NE(output.code, 0);
  EXPECT_TRUE(contains(output.text, "WORLD_SIZE = 4")) << output.text;
}

INSTANTIATE_TEST_SUITE_P(
    All, LauncherTest,
    ::testing::Values(Launcher{"mpirun.openmpi", "--oversubscribe", "open-mpi"},
                      Launcher{"mpirun.mpich", "", "pmi"}),
    [](const auto& test) { return std::string{test.param.name + std::strlen("mpirun.")}; });

}  // namespace
}  // namespace m2n::bootstrap
