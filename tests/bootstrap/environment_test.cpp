// M2N_* variables and the log.
#include <gtest/gtest.h>

#include <stdexcept>
#include <tuple>

#include "tests/bootstrap/support.hpp"
#include "transport/env.hpp"
#include "transport/log.hpp"

namespace m2n::bootstrap {
namespace {

using namespace transport;

TEST(Environment, NothingIsSetByDefault) {
  const Variables variables{{}};
  Result<Environment> environment = read_environment();
  ASSERT_TRUE(environment);
  EXPECT_FALSE(environment->transport || environment->interface_name || environment->log ||
               environment->job_key || environment->store || environment->start_timeout ||
               environment->step_timeout || environment->plugin_path || environment->host_id);
  EXPECT_EQ(environment->shm_dir, "/dev/shm");
}

TEST(Environment, EveryVariableIsRead) {
  const Variables variables{{{"M2N_TRANSPORT", "shm"},
                             {"M2N_INTERFACE", "lo"},
                             {"M2N_LOG", "debug"},
                             {"M2N_JOB_KEY", "k"},
                             {"M2N_STORE", "tcp://localhost:1"},
                             {"M2N_START_TIMEOUT_MS", "2147483647"},
                             {"M2N_STEP_TIMEOUT_MS", "0"},
                             {"M2N_PLUGIN_PATH", "/p"},
                             {"M2N_SHM_DIR", "/s"},
                             {"M2N_HOST_ID", "h"}}};
  Result<Environment> read = read_environment();
  ASSERT_TRUE(read) << read.status().text();
  EXPECT_EQ(read->transport, "shm");
  EXPECT_EQ(read->interface_name, "lo");
  EXPECT_EQ(read->log, "debug");
  EXPECT_EQ(read->job_key, "k");
  EXPECT_EQ(read->store, "tcp://localhost:1");
  EXPECT_EQ(read->start_timeout, 2147483647ms);
  EXPECT_EQ(read->step_timeout, 0ms);
  EXPECT_EQ(read->plugin_path, "/p");
  EXPECT_EQ(read->shm_dir, "/s");
  EXPECT_EQ(read->host_id, "h");
}

TEST(Environment, WrongTextsAreRefusedByName) {
  using Row = std::tuple<const char*, const char*, const char*>;  // variable, text, allowed
  for (const auto& [name, text, allowed] :
       {Row{"M2N_START_TIMEOUT_MS", "5x", "0..2147483647"},
        {"M2N_START_TIMEOUT_MS", "-3", "0..2147483647"},
        {"M2N_START_TIMEOUT_MS", "", "0 = never"},
        {"M2N_STEP_TIMEOUT_MS", "+5", "digits only"},
        {"M2N_STEP_TIMEOUT_MS", " 5", "digits only"},
        {"M2N_STEP_TIMEOUT_MS", "5 ", "digits only"},
        {"M2N_STEP_TIMEOUT_MS", "5.0", "digits only"},
        {"M2N_STEP_TIMEOUT_MS", "0x5", "digits only"},
        {"M2N_STEP_TIMEOUT_MS", "1e3", "digits only"},
        {"M2N_STEP_TIMEOUT_MS", "2147483648", "0..2147483647"},
        {"M2N_STEP_TIMEOUT_MS", "99999999999999999999999", "0..2147483647"},
        {"M2N_LOG", "loud", "error, warn, info, debug"},
        {"M2N_LOG", "", "error, warn, info, debug"},
        {"M2N_LOG", "WARN", "error, warn, info, debug"},
        {"M2N_STORE", "localhost:1", "tcp://HOST:PORT or file:DIRECTORY"},
        {"M2N_STORE", "tcp://", "tcp://HOST:PORT or file:DIRECTORY"},
        {"M2N_STORE", "", "at least one character"},
        {"M2N_SHM_DIR", "shm", "absolute path"},
        {"M2N_SHM_DIR", "", "absolute path"},
        {"M2N_TRANSPORT", "", "at least one character"},
        {"M2N_JOB_KEY", "", "at least one character"},
        {"M2N_JOB_KEY", "file:/does/not/exist", "file:PATH of a readable file"},
        {"M2N_JOB_KEY", "file:/", "file:PATH of a readable file"}}) {
    const Variables variables{{{name, text}}};
    const Result<Environment> environment = read_environment();
    ASSERT_EQ(environment.code(), Code::invalid) << name << "=" << text;
    const std::string said = environment.status().text();
    EXPECT_TRUE(contains(said, name) && contains(said, '"' + std::string{text} + '"') &&
                contains(said, allowed))
        << said;
  }
}

TEST(Environment, KeysMayLieInAFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/key";
  const Variables variables{{{"M2N_JOB_KEY", "file:" + path}}};
  for (const char* content : {"secret", "secret\n", "secret\r\n"}) {
    ASSERT_TRUE(replace_small_file(path, bytes_of(content)));
    Result<Environment> environment = read_environment();
    ASSERT_TRUE(environment) << environment.status().text();
    EXPECT_EQ(environment->job_key, "secret");
  }
  for (const std::string& content : {std::string{}, std::string{"\n"}, std::string(5000, 'x')}) {
    ASSERT_TRUE(replace_small_file(path, bytes_of(content)));
    const Result<Environment> environment = read_environment();
    EXPECT_EQ(environment.code(), Code::invalid);
    EXPECT_TRUE(contains(environment.status().text(), path));
    EXPECT_FALSE(contains(environment.status().text(), "xxx"));
  }
}

TEST(Log, LevelsComeFromTheEnvironment) {
  for (const auto& [level, lines] :
       {std::pair{"error", 1}, {"warn", 2}, {"info", 3}, {"debug", 4}, {"", 2}}) {
    const Variables variables{*level == 0 ? std::map<std::string, std::string>{}
                                          : std::map<std::string, std::string>{{"M2N_LOG", level}}};
    ::testing::internal::CaptureStderr();
    const Log log{{}, 3};
    log(LogLevel::error, "one");
    log(LogLevel::warn, "two\nlines");
    log(LogLevel::info, "three");
    log(LogLevel::debug, "four");
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), lines) << text;
    EXPECT_TRUE(contains(text, "m2n error [rank 3]: one\n")) << text;
  }
}

TEST(Log, CallbacksGetTheLinesAndMayThrow) {
  const Variables variables{{}};
  std::vector<std::string> lines;
  const Log log{[&](LogLevel level, std::int32_t rank, std::string_view text) {
                  lines.push_back(std::to_string(static_cast<int>(level)) + std::to_string(rank) +
                                  std::string{text});
                  throw std::runtime_error{"no"};
                },
                7};
  ::testing::internal::CaptureStderr();
  log(LogLevel::warn, "text");
  log(LogLevel::info, "not at this level");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(lines, std::vector<std::string>{"17text"});
}

}  // namespace
}  // namespace m2n::bootstrap
