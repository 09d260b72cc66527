#include "transport/registry.hpp"

#include <array>
#include <mutex>
#include <string>
#include <utility>

#include "transport/env.hpp"
#include "transport/inproc.hpp"
#include "transport/shm.hpp"
#include "transport/text.hpp"

namespace m2n::transport {
namespace {

constexpr std::array<std::string_view, 2> names{"inproc", "shm"};

struct Hook {
  std::mutex mutex;
  OpenHook function;
};
Hook& hook() {
  static Hook* instance = new Hook;  // never destroyed: threads may outlive main
  return *instance;
}

Result<std::unique_ptr<Transport>> open_by_name(std::string_view name, const Options& options) {
  if (name == "inproc") return open_inproc(options);
  if (name == "shm") {
    const Result<Environment> environment = read_environment();
    if (!environment) return environment.status();
    ShmSettings settings;
    settings.directory = environment->shm_dir;
    return open_shm(options, settings);
  }
  return refuse({"open_transport", "name", std::string{name}, "inproc, shm",
                 static_cast<std::int32_t>(options.world_rank),
                 "GroupConfig::transport or M2N_TRANSPORT"});
}

}  // namespace

std::span<const std::string_view> transport_names() noexcept {
  return names;
}

void set_open_hook(OpenHook function) {
  const std::lock_guard lock{hook().mutex};
  hook().function = std::move(function);
}

Result<std::unique_ptr<Transport>> open_transport(std::string_view name, const Options& options) {
  Result<std::unique_ptr<Transport>> opened = open_by_name(name, options);
  if (!opened) return opened;
  OpenHook wrap;
  {
    const std::lock_guard lock{hook().mutex};
    wrap = hook().function;
  }
  if (wrap) return wrap(std::move(*opened), options);
  return opened;
}

}  // namespace m2n::transport
