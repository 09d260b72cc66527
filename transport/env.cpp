// The one place that reads the environment: of this process, and of its ancestors when the launcher
// is looked for. Strict: a text that is not allowed is refused, never guessed at. Used at set-up;
// the process must not change its environment at the same time.
#include "transport/env.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>

#include "transport/text.hpp"

namespace m2n::transport {
namespace {

constexpr std::size_t max_key_file_bytes = 4096;
constexpr std::size_t max_environment_bytes = std::size_t{8} << 20;
constexpr int max_ancestors = 32;
constexpr std::int64_t max_timeout_ms = 2'147'483'647;

Status refuse_variable(const char* name, std::string actual, std::string allowed) {
  return refuse({"read_environment", name, std::move(actual), std::move(allowed), -1, name});
}

std::string quoted(std::string_view text) {
  return '"' + std::string{text} + '"';
}

// The whole file, but never more than `limit` + 1 bytes.
std::optional<std::string> read_file(const std::string& path, std::size_t limit) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string content;
  std::array<char, 4096> piece{};
  ssize_t got = 0;
  while (content.size() <= limit && (got = read(file, piece.data(), piece.size())) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    content.append(piece.data(), static_cast<std::size_t>(got));
  }
  const int error = errno;
  close(file);
  errno = error;
  if (got < 0) return std::nullopt;
  return content;
}

Status read_text(const char* name, std::optional<std::string>& into) {
  into = launcher_variable(name);
  if (into && into->empty()) {
    return refuse_variable(name, "\"\"", "a text of at least one character, or not set at all");
  }
  return {};
}

Status read_timeout(const char* name, std::optional<std::chrono::milliseconds>& into) {
  const std::optional<std::string> text = launcher_variable(name);
  if (!text) return {};
  std::int64_t value = -1;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stop != end || value < 0 || value > max_timeout_ms) {
    return refuse_variable(
        name, quoted(*text),
        "0.." + std::to_string(max_timeout_ms) + " milliseconds, digits only (0 = never)");
  }
  into = std::chrono::milliseconds{value};
  return {};
}

// Never puts the key into a message.
Status read_job_key(std::optional<std::string>& into) {
  constexpr const char* name = "M2N_JOB_KEY";
  if (Status status = read_text(name, into); !status) return status;
  if (!into || into->rfind("file:", 0) != 0) return {};
  const std::string path = into->substr(5);
  std::optional<std::string> content = read_file(path, max_key_file_bytes);
  if (!content) {
    return refuse_variable(name, quoted(*into) + " (" + std::strerror(errno) + ")",
                           "a key, or file:PATH of a readable file");
  }
  while (!content->empty() && (content->back() == '\n' || content->back() == '\r')) {
    content->pop_back();
  }
  if (content->empty() || content->size() > max_key_file_bytes) {
    return refuse_variable(name,
                           quoted(*into) + " with " + std::to_string(content->size()) + " bytes",
                           "a file with 1.." + std::to_string(max_key_file_bytes) + " bytes");
  }
  into = std::move(content);
  return {};
}

Status read_log_level(std::optional<std::string>& into) {
  into = launcher_variable("M2N_LOG");
  if (!into || *into == "error" || *into == "warn" || *into == "info" || *into == "debug")
    return {};
  return refuse_variable("M2N_LOG", quoted(*into), "error, warn, info, debug");
}

Status read_store(std::optional<std::string>& into) {
  if (Status status = read_text("M2N_STORE", into); !status || !into) return status;
  if (into->rfind("tcp://", 0) == 0 && into->size() > 6) return {};
  if (into->rfind("file:", 0) == 0 && into->size() > 5) return {};
  return refuse_variable("M2N_STORE", quoted(*into), "tcp://HOST:PORT or file:DIRECTORY");
}

Status read_shm_dir(std::string& into) {
  const std::optional<std::string> text = launcher_variable("M2N_SHM_DIR");
  if (!text) return {};
  if (text->empty() || text->front() != '/') {
    return refuse_variable("M2N_SHM_DIR", quoted(*text), "an absolute path");
  }
  into = *text;
  return {};
}

struct ProcessFacts {
  std::int64_t parent = 0;
  std::string start_time;  // clock ticks since boot
};

// From /proc/PID/stat: after the program's name, which may hold anything, field 4 is the parent and
// field 22 the start time.
std::optional<ProcessFacts> facts_of(const std::string& folder) {
  const std::optional<std::string> stat = read_file(folder + "/stat", 4096);
  const std::size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return std::nullopt;
  ProcessFacts facts;
  std::istringstream fields{stat->substr(name_end + 1)};
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
    if (number == 4) std::from_chars(field.data(), field.data() + field.size(), facts.parent);
    if (number == 22) facts.start_time = field;
  }
  if (facts.start_time.empty()) return std::nullopt;
  return facts;
}

}  // namespace

Result<Environment> read_environment() {
  Environment environment;
  Status status;
  if (!(status = read_text("M2N_TRANSPORT", environment.transport))) return status;
  if (!(status = read_text("M2N_INTERFACE", environment.interface_name))) return status;
  if (!(status = read_log_level(environment.log))) return status;
  if (!(status = read_job_key(environment.job_key))) return status;
  if (!(status = read_store(environment.store))) return status;
  if (!(status = read_timeout("M2N_START_TIMEOUT_MS", environment.start_timeout))) return status;
  if (!(status = read_timeout("M2N_STEP_TIMEOUT_MS", environment.step_timeout))) return status;
  if (!(status = read_text("M2N_PLUGIN_PATH", environment.plugin_path))) return status;
  if (!(status = read_shm_dir(environment.shm_dir))) return status;
  if (!(status = read_text("M2N_HOST_ID", environment.host_id))) return status;
  return environment;
}

std::optional<std::string> launcher_variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return std::string{text};
}

std::optional<std::string> launcher_process(const char* variable) {
  const std::optional<std::string> value = launcher_variable(variable);
  if (!value) return std::nullopt;
  const std::string wanted = '\0' + std::string{variable} + '=' + *value + '\0';
  std::int64_t process = getppid();
  for (int depth = 0; depth < max_ancestors && process > 0; ++depth) {
    const std::string folder = "/proc/" + std::to_string(process);
    const std::optional<ProcessFacts> facts = facts_of(folder);
    if (!facts) return std::nullopt;
    // Unreadable = another user's, or hardened: no wrapper that this job put there.
    const std::optional<std::string> theirs = read_file(folder + "/environ", max_environment_bytes);
    if (!theirs || ('\0' + *theirs).find(wanted) == std::string::npos) {
      return std::to_string(process) + "-" + facts->start_time;
    }
    process = facts->parent;
  }
  return std::nullopt;
}

}  // namespace m2n::transport
