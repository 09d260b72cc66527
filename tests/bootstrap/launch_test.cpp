// Who a process is, from the variables of each launcher and from those of several at once.
#include <gtest/gtest.h>

#include "m2n/launch.hpp"
#include "tests/bootstrap/support.hpp"

namespace m2n::bootstrap {
namespace {

using Map = std::map<std::string, std::string>;

Map operator+(Map a, const Map& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const Map torchrun{{"RANK", "2"},
                   {"WORLD_SIZE", "4"},
                   {"LOCAL_RANK", "1"},
                   {"MASTER_ADDR", "node0"},
                   {"MASTER_PORT", "29500"}};
const Map open_mpi{{"OMPI_COMM_WORLD_RANK", "2"},
                   {"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                   {"PMIX_RANK", "2"},
                   {"PMIX_NAMESPACE", "17"}};
const Map hydra{
    {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};
const Map slurm{{"PMIX_RANK", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_JOB_ID", "9"}};

TEST(Launch, EachLauncherIsUnderstood) {
  struct Row {
    Map variables;
    const char* source;
    const char* store;  // its beginning
    std::uint32_t local_rank;
  };
  const std::string job = "file:/tmp/m2n-job-";
  for (const Row& row : std::vector<Row>{
           {torchrun, "torchrun", "tcp://node0:29500", 1},
           {torchrun + Map{{"TORCHELASTIC_USE_AGENT_STORE", "True"}}, "torchrun",
            "tcp://node0:29501", 1},
           {torchrun + Map{{"MASTER_ADDR", "::1"}}, "torchrun", "tcp://[::1]:29500", 1},
           {torchrun + Map{{"M2N_STORE", "file:/x"}}, "M2N_STORE", "file:/x", 1},
           {open_mpi, "open-mpi", job.c_str(), 2},
           {open_mpi + Map{{"M2N_STORE", "tcp://h:1"}}, "M2N_STORE", "tcp://h:1", 2},
           {open_mpi + Map{{"MASTER_ADDR", "h"}, {"MASTER_PORT", "5"}}, "open-mpi", "tcp://h:5", 2},
           {open_mpi + Map{{"TMPDIR", "/var/tmp"}}, "open-mpi", "file:/var/tmp/m2n-job-", 2},
           {open_mpi + Map{{"TMPDIR", "relative"}}, "open-mpi", job.c_str(), 2},
           {hydra, "pmi", job.c_str(), 2},
           {slurm, "pmi", job.c_str(), 2},
           {Map{{"RANK", "2"}, {"WORLD_SIZE", "4"}} + hydra, "torchrun", job.c_str(), 2},
       }) {
    const Variables variables{row.variables};
    Result<Launch> launch = detect_launch();
    ASSERT_TRUE(launch) << row.source << ": " << launch.status().text();
    EXPECT_EQ(launch->source, row.source);
    EXPECT_EQ(launch->store.rfind(row.store, 0), 0u) << launch->store;
    EXPECT_EQ(launch->world_rank, 2u);
    EXPECT_EQ(launch->world_size, 4u);
    EXPECT_EQ(launch->local_rank, row.local_rank);
  }
}

TEST(Launch, NoLauncherIsUnavailable) {
  const Variables variables{{}};
  const Result<Launch> launch = detect_launch();
  EXPECT_EQ(launch.code(), Code::unavailable);
  EXPECT_TRUE(contains(launch.status().text(), "WORLD_SIZE")) << launch.status().text();
  const Variables store_only{{{"M2N_STORE", "file:/x"}}};
  EXPECT_EQ(detect_launch().code(), Code::unavailable);
}

TEST(Launch, ContradictionsNameBothSides) {
  struct Row {
    Map variables;
    std::vector<const char*> words;
  };
  for (const Row& row : std::vector<Row>{
           {open_mpi + Map{{"WORLD_SIZE", "3"}}, {"WORLD_SIZE = 3", "OMPI_COMM_WORLD_SIZE = 4"}},
           {open_mpi + Map{{"RANK", "1"}}, {"RANK = 1", "OMPI_COMM_WORLD_RANK = 2"}},
           {open_mpi + Map{{"PMIX_RANK", "3"}}, {"PMIX_RANK = 3", "OMPI_COMM_WORLD_RANK = 2"}},
           {open_mpi + Map{{"LOCAL_RANK", "0"}},
            {"LOCAL_RANK = 0", "OMPI_COMM_WORLD_LOCAL_RANK = 2"}},
           {open_mpi + hydra + Map{{"PMI_SIZE", "2"}},
            {"PMI_SIZE = 2", "OMPI_COMM_WORLD_SIZE = 4"}},
           {torchrun + Map{{"RANK", "4"}}, {"RANK = 4", "WORLD_SIZE = 4"}},
           {torchrun + Map{{"LOCAL_RANK", "4"}}, {"LOCAL_RANK = 4", "WORLD_SIZE = 4"}},
           {Map{{"RANK", "1"}}, {"WORLD_SIZE", "RANK = 1"}},
           {Map{{"WORLD_SIZE", "2"}}, {"RANK = (not set)", "WORLD_SIZE = 2"}},
           {Map{{"PMIX_RANK", "1"}}, {"WORLD_SIZE = (not set)", "PMIX_RANK = 1"}},
           {Map{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, {"MASTER_ADDR", "M2N_STORE"}},
           {torchrun + Map{{"MASTER_PORT", "0"}}, {"MASTER_PORT", "1..65535"}},
           {torchrun + Map{{"MASTER_PORT", "65536"}}, {"MASTER_PORT", "1..65535"}},
           {torchrun + Map{{"MASTER_PORT", "29500x"}}, {"MASTER_PORT", "29500x"}},
           {torchrun + Map{{"MASTER_ADDR", ""}}, {"MASTER_ADDR"}},
           {torchrun + Map{{"RANK", "-1"}}, {"RANK", "\"-1\""}},
           {torchrun + Map{{"RANK", ""}}, {"RANK", "\"\""}},
           {torchrun + Map{{"WORLD_SIZE", "0"}}, {"WORLD_SIZE", "\"0\""}},
           {open_mpi + Map{{"MASTER_ADDR", "h"}}, {"MASTER_PORT = (not set)"}},
           {open_mpi + Map{{"MASTER_PORT", "1"}}, {"MASTER_ADDR = (not set)"}},
           {open_mpi + Map{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
            {"OMPI_COMM_WORLD_LOCAL_SIZE = 2", "one host", "M2N_STORE"}},
           {hydra + Map{{"MPI_LOCALNRANKS", "1"}}, {"MPI_LOCALNRANKS = 1", "one host"}},
           {torchrun + Map{{"M2N_STORE", "tcp://h"}}, {"M2N_STORE", "tcp://HOST:PORT"}},
           {torchrun + Map{{"M2N_STORE", "tcp://h:0"}}, {"M2N_STORE", "1..65535"}},
           {torchrun + Map{{"M2N_STORE", "tcp://::1:5"}}, {"M2N_STORE", "[IPV6]"}},
           {torchrun + Map{{"M2N_STORE", "node0:5"}}, {"M2N_STORE", "node0:5"}},
           {torchrun + Map{{"M2N_STEP_TIMEOUT_MS", "5x"}}, {"M2N_STEP_TIMEOUT_MS", "5x"}},
       }) {
    const Variables variables{row.variables};
    const Result<Launch> launch = detect_launch();
    EXPECT_EQ(launch.code(), Code::invalid) << row.words[0];
    for (const char* word : row.words) {
      EXPECT_TRUE(contains(launch.status().text(), word))
          << word << " in " << launch.status().text();
    }
  }
}

TEST(Launch, JobsHaveDirectoriesOfTheirOwn) {
  const auto store_of = [](const Map& map) {
    const Variables variables{map};
    Result<Launch> launch = detect_launch();
    return launch ? launch->store : launch.status().text();
  };
  EXPECT_EQ(store_of(open_mpi),
            store_of(open_mpi + Map{{"OMPI_COMM_WORLD_RANK", "1"}, {"PMIX_RANK", "1"}}));
  EXPECT_NE(store_of(open_mpi), store_of(open_mpi + Map{{"PMIX_NAMESPACE", "18"}}));
}

TEST(OpenStore, TcpServesAtRankZero) {
  const Variables variables{{{"M2N_START_TIMEOUT_MS", "20000"}}};
  const ReservedPort port;
  Launch launch;
  launch.world_size = 2;
  launch.source = "M2N_STORE";
  launch.store = "tcp://127.0.0.1:" + std::to_string(port.number());
  auto server = open_store(launch);
  ASSERT_TRUE(server) << server.status().text();
  EXPECT_EQ(tcp_store_port(**server), port.number());
  launch.world_rank = 1;
  auto client = open_store(launch);
  ASSERT_TRUE(client) << client.status().text();
  EXPECT_EQ(tcp_store_port(**client), 0);
  ASSERT_TRUE((*client)->set("a", bytes_of("b")));
  EXPECT_EQ(text_of(*(*server)->get("a")), "b");
}

TEST(OpenStore, WrongLaunchesAreRefused) {
  const Variables variables{{}};
  Launch launch;
  for (const char* store : {"", "udp://h:1", "tcp://", "tcp://h:x"}) {
    launch.store = store;
    EXPECT_EQ(open_store(launch).code(), Code::invalid) << store;
  }
  launch.world_rank = 1;
  launch.store = "file:/tmp";
  EXPECT_EQ(open_store(launch).code(), Code::invalid);
}

class JobStoreTest : public ::testing::Test {
 protected:
  Result<std::shared_ptr<Store>> open(std::uint32_t rank) {
    Launch launch;
    launch.world_rank = rank;
    launch.world_size = 2;
    launch.source = "open-mpi";
    launch.store = "file:" + path_;
    return open_store(launch);
  }
  const Variables variables_{{}};
  TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/m2n-job-0123";
};

TEST_F(JobStoreTest, TheLastRankRemovesTheDirectory) {
  auto first = open(0);
  auto second = open(1);
  ASSERT_TRUE(first && second);
  ASSERT_TRUE((*first)->set("a", bytes_of("b")));
  EXPECT_EQ(text_of(*(*second)->get("a")), "b");
  first = Code::again;
  EXPECT_TRUE((*second)->get("a")) << "gone while a rank still used it";
  second = Code::again;
  EXPECT_EQ(directory_.entries(), 0u);
}

// One rank is through and opens the next store while the other still uses the first one.
TEST_F(JobStoreTest, StoresOfOneJobDoNotMix) {
  auto first_of_0 = open(0);
  auto first_of_1 = open(1);
  ASSERT_TRUE(first_of_0 && first_of_1);
  ASSERT_TRUE((*first_of_0)->set("a", bytes_of("old")));
  first_of_0 = Code::again;
  auto second_of_0 = open(0);
  ASSERT_TRUE(second_of_0);
  EXPECT_EQ((*second_of_0)->get("a").code(), Code::again);
  first_of_1 = Code::again;
  ASSERT_TRUE((*second_of_0)->set("a", bytes_of("new")));
  auto second_of_1 = open(1);
  ASSERT_TRUE(second_of_1);
  EXPECT_EQ(text_of(*(*second_of_1)->get("a")), "new");
  second_of_0 = Code::again;
  second_of_1 = Code::again;
  EXPECT_EQ(directory_.entries(), 0u);
}

TEST_F(JobStoreTest, ForeignDirectoriesAreRefused) {
  std::filesystem::create_directory(path_);
  std::filesystem::permissions(path_, std::filesystem::perms::all);
  const auto open_one = open(0);
  EXPECT_EQ(open_one.code(), Code::system);
  EXPECT_TRUE(contains(open_one.status().text(), path_)) << open_one.status().text();
  std::filesystem::remove(path_);
  std::filesystem::create_directory(directory_.path() + "/elsewhere");
  std::filesystem::create_directory_symlink(directory_.path() + "/elsewhere", path_);
  EXPECT_EQ(open(0).code(), Code::system);
}

}  // namespace
}  // namespace m2n::bootstrap
