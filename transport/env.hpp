// The one place that reads the environment. Names are listed in docs/environment.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "m2n/status.hpp"

namespace m2n::transport {

// M2N_* settings, read anew at each call.
struct Environment {
  std::optional<std::string> transport;       // M2N_TRANSPORT
  std::optional<std::string> interface_name;  // M2N_INTERFACE
  std::optional<std::string> log;             // M2N_LOG
  std::optional<std::string> job_key;         // M2N_JOB_KEY: value or file:PATH (content is read)
  std::optional<std::string> store;           // M2N_STORE
  std::optional<std::chrono::milliseconds> start_timeout;  // M2N_START_TIMEOUT_MS, 0 = never
  std::optional<std::chrono::milliseconds> step_timeout;   // M2N_STEP_TIMEOUT_MS, 0 = never
  std::optional<std::string> plugin_path;                  // M2N_PLUGIN_PATH
  std::string shm_dir = "/dev/shm";                        // M2N_SHM_DIR
  std::optional<std::string> host_id;                      // M2N_HOST_ID
};

// `invalid` names the variable, its text and what is allowed.
Result<Environment> read_environment();

// A launcher's variable (RANK, OMPI_COMM_WORLD_RANK, ...), or nothing.
std::optional<std::string> launcher_variable(const char* name);

// "PID-STARTTIME" of the nearest ancestor that was not started with `variable` of this process: the
// launcher that set it, whatever wrappers lie between. Nothing if /proc does not tell.
std::optional<std::string> launcher_process(const char* variable);

}  // namespace m2n::transport
