// Log lines to the user's callback or to stderr. Any thread; one line is one write, so that the
// lines of several ranks do not mix.
#include "transport/log.hpp"

#include <unistd.h>

#include <array>
#include <string>

#include "transport/env.hpp"

namespace m2n::transport {
namespace {

constexpr std::array<std::string_view, 4> level_names{"error", "warn", "info", "debug"};

void write_line(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    if (written <= 0) return;  // nowhere to say it
    line.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

Log::Log(LogCallback callback, std::int32_t rank) : callback_{std::move(callback)}, rank_{rank} {
  // A wrong M2N_LOG is reported by read_environment; here the default holds.
  const std::optional<std::string> text = launcher_variable("M2N_LOG");
  for (std::size_t i = 0; text && i < level_names.size(); ++i) {
    if (*text == level_names[i]) threshold_ = static_cast<LogLevel>(i);
  }
}

void Log::operator()(LogLevel level, std::string_view text) const {
  if (level > threshold_) return;
  if (callback_) {
    try {
      callback_(level, rank_, text);
    } catch (...) {  // the user's exception must not unwind through the library
    }
    return;
  }
  std::string line{"m2n "};
  line.append(level_names[static_cast<std::size_t>(level)]);
  if (rank_ >= 0) line.append(" [rank ").append(std::to_string(rank_)).append("]");
  line.append(": ").append(text);
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  write_line(line.append("\n"));
}

}  // namespace m2n::transport
