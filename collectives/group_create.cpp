// Group::create: who is there, do all agree, and one transport instance per worker.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "collectives/channel_impl.hpp"
#include "collectives/gathering.hpp"
#include "collectives/group_core.hpp"
#include "transport/env.hpp"
#include "transport/registry.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {
namespace {

// What tells hosts apart: the kernel's boot id, unless M2N_HOST_ID says otherwise.
std::string host_id(const transport::Environment& environment) {
  if (environment.host_id) return *environment.host_id;
  std::string id;
  std::ifstream{"/proc/sys/kernel/random/boot_id"} >> id;
  return id;
}

// A pid alone is not enough: containers on one host repeat them. A forked child keeps the nonce,
// not the pid.
std::string process_id() {
  static const std::string nonce = random_hex(8);
  return std::to_string(getpid()) + "/" + nonce;
}

Bytes cpu_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  const auto* from = reinterpret_cast<const std::byte*>(&set);
  return {from, from + sizeof set};
}

// Keys of the groups of one name. With its length in front no name runs into another's keys.
std::string key_of(const std::string& name) {
  return "m2n/" + std::to_string(name.size()) + ":" + name;
}

// A number that a rank wrote as text; nothing if it has not.
std::optional<std::uint64_t> number_at(Store& store, const std::string& key) {
  const Result<Bytes> bytes = store.get(key);
  if (!bytes || bytes->size() > 18) return std::nullopt;
  std::uint64_t number = 0;
  for (const std::byte digit : *bytes) {
    number = number * 10 + (std::to_integer<std::uint64_t>(digit) - '0');
  }
  return number;
}

// Where ranks of this store wait that are wanted here: a difference of names shows in no hello.
std::string elsewhere(Store& store, const std::string& own_name, std::uint32_t rank) {
  constexpr std::int64_t most = 64;
  const Result<std::int64_t> names = store.add("m2n/names", 0);
  if (!names) return {};
  for (std::int64_t i = std::max<std::int64_t>(*names - most, 0); i < *names; ++i) {
    const Result<Bytes> bytes = store.get("m2n/names/" + std::to_string(i));
    if (!bytes) continue;
    const std::string name{reinterpret_cast<const char*>(bytes->data()), bytes->size()};
    if (name == own_name) continue;
    const std::string key = key_of(name);
    const std::uint64_t next = number_at(store, key + "/next/" + std::to_string(rank)).value_or(0);
    for (std::uint64_t number = next == 0 ? 0 : next - 1; number <= next; ++number) {
      const Meeting meeting = look(store, key + "/" + std::to_string(number));
      if (!meeting.has(rank) || (meeting.over() && meeting.outcome())) continue;
      return "; in this store rank " + std::to_string(rank) + " has GroupConfig::name = " + name +
             ", here it is " + own_name;
    }
  }
  return {};
}

// Creating a group, step by step.
class Creation {
 public:
  Creation(const GroupConfig& config, std::shared_ptr<Store> store)
      : core_{std::make_shared<GroupCore>()} {
    core_->config = config;
    core_->store = std::move(store);
  }
  Result<std::shared_ptr<GroupCore>> run();
  // This rank cannot go on. The others hear of it if they can.
  void give_up(const Status& status) noexcept;

 private:
  Status note_next() const;
  void leave(const Status& status) noexcept;
  Status settings();
  Status begin();
  Status meet();
  Status learn(const std::vector<Hello>& hellos);
  Status choose_transport(const std::vector<Hello>& hellos);
  Status open_workers();
  Hello first_hello() const;
  Hello address_hello() const;
  std::string next_key() const {
    return key_of(core_->config.name) + "/next/" + std::to_string(core_->config.world_rank);
  }

  std::shared_ptr<GroupCore> core_;
  transport::Environment environment_;
  std::optional<Gathering> gathering_;
};

Status Creation::settings() {
  if (Status status = check_config(core_->config); !status) return status;
  Result<transport::Environment> environment = transport::read_environment();
  if (!environment) return environment.status();
  environment_ = *environment;
  GroupConfig& config = core_->config;
  using std::chrono::milliseconds;
  if (config.start_timeout.count() == 0)
    config.start_timeout = environment_.start_timeout.value_or(milliseconds{60000});
  if (config.step_timeout.count() == 0)
    config.step_timeout = environment_.step_timeout.value_or(milliseconds{30000});
  core_->start_timeout = config.start_timeout;
  core_->step_timeout = config.step_timeout;
  if (environment_.transport && config.transport == "auto")
    config.transport = *environment_.transport;
  const auto names = transport::transport_names();
  if (config.transport != "auto" &&
      std::find(names.begin(), names.end(), config.transport) == names.end()) {
    std::string known = "auto";
    for (const std::string_view name : names) known.append(", ").append(name);
    return transport::refuse({"create", "transport", config.transport, known, core_->rank(),
                              "GroupConfig::transport or M2N_TRANSPORT"});
  }
  core_->log = transport::Log{config.log, core_->rank()};
  return {};
}

// Which meeting is this rank's next; the first rank of a name registers it.
Status Creation::begin() {
  const GroupConfig& config = core_->config;
  Store& store = *core_->store;
  const std::string key = key_of(config.name);
  const std::optional<std::uint64_t> next = number_at(store, next_key());
  if (!next) {
    Result<std::int64_t> known = store.add(key + "/named", 1);
    if (!known) return known.status();
    if (*known == 1) {
      Result<std::int64_t> count = store.add("m2n/names", 1);
      if (!count) return count.status();
      Status status = store.set("m2n/names/" + std::to_string(*count - 1), bytes_of(config.name));
      if (!status) return status;
    }
  }
  Gathering::Setup setup;
  setup.store = &store;
  setup.key = key;
  setup.number = next.value_or(0);
  setup.what = "create: group \"" + config.name + "\"";
  setup.self.versions = versions_of(config.world_rank);
  setup.self.world_rank = config.world_rank;
  setup.self.world_size = config.world_size;
  setup.timeout = core_->start_timeout;
  setup.about = [&store, name = config.name](std::uint32_t rank) {
    return elsewhere(store, name, rank);
  };
  gathering_.emplace(std::move(setup));
  return {};
}

Hello Creation::first_hello() const {
  const GroupConfig& config = core_->config;
  Hello hello;
  hello.field("attention_ranks", config.attention_ranks);
  hello.field("expert_ranks", config.expert_ranks);
  hello.field("transport", config.transport);
  hello.value("attention_rank", bytes_of(std::to_string(config.attention_rank)));
  hello.value("expert_rank", bytes_of(std::to_string(config.expert_rank)));
  hello.value("host", bytes_of(host_id(environment_)));
  hello.value("process", bytes_of(process_id()));
  hello.value("cpus", cpu_mask());
  hello.value("job", bytes_of(random_hex(16)));
  return hello;
}

Status Creation::learn(const std::vector<Hello>& hellos) {
  GroupCore& core = *core_;
  constexpr std::uint32_t nobody = ~0u;
  core.attention_world.assign(core.config.attention_ranks, nobody);
  core.expert_world.assign(core.config.expert_ranks, nobody);
  core.expert_is_local.assign(core.config.expert_ranks, false);
  const std::string host = hellos[core.config.world_rank].find_text("host");
  std::uint32_t on_this_host = 0;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const Hello& hello : hellos) {
    const bool local = hello.find_text("host") == host;
    auto place = [&](const char* role, std::vector<std::uint32_t>& world) -> Status {
      const int index = std::atoi(hello.find_text(role).c_str());
      if (index < 0) return {};
      if (static_cast<std::size_t>(index) >= world.size() || world[index] != nobody) {
        return transport::refuse(
            {"create", role, std::to_string(index) + " on rank " + std::to_string(hello.world_rank),
             "each index once", core.rank(), std::string{"GroupConfig::"} + role});
      }
      world[index] = hello.world_rank;
      return {};
    };
    if (Status status = place("attention_rank", core.attention_world); !status) return status;
    if (Status status = place("expert_rank", core.expert_world); !status) return status;
    const int expert = std::atoi(hello.find_text("expert_rank").c_str());
    if (expert >= 0) core.expert_is_local[static_cast<std::size_t>(expert)] = local;
    const Bytes* mask = hello.find("cpus");
    if (!local || mask == nullptr || mask->size() != sizeof cpus) continue;
    ++on_this_host;
    cpu_set_t theirs;
    std::copy(mask->begin(), mask->end(), reinterpret_cast<std::byte*>(&theirs));
    CPU_OR(&cpus, &cpus, &theirs);
  }
  auto missing = [&](const char* role, const std::vector<std::uint32_t>& world) -> Status {
    const auto hole = std::find(world.begin(), world.end(), nobody);
    if (hole == world.end()) return {};
    return transport::refuse({"create", role,
                              "nobody has index " + std::to_string(hole - world.begin()),
                              "each index once", core.rank(), std::string{"GroupConfig::"} + role});
  };
  if (Status status = missing("attention_rank", core.attention_world); !status) return status;
  if (Status status = missing("expert_rank", core.expert_world); !status) return status;
  core.wait = WaitPolicy::make(core.config.wait,
                               on_this_host > static_cast<std::uint32_t>(CPU_COUNT(&cpus)));
  core.job = hellos[0].find_text("job");
  return {};
}

Status Creation::choose_transport(const std::vector<Hello>& hellos) {
  const Hello& mine = hellos[core_->config.world_rank];
  auto same = [&](const char* what) {
    return std::all_of(hellos.begin(), hellos.end(), [&](const Hello& hello) {
      return hello.find_text(what) == mine.find_text(what);
    });
  };
  const bool one_host = same("host");
  const bool one_process = one_host && same("process");
  std::string& name = core_->transport_name;
  name = core_->config.transport != "auto" ? core_->config.transport
         : one_process                     ? "inproc"
                                           : "shm";
  if ((name == "inproc" && one_process) || (name != "inproc" && one_host)) return {};
  return transport::refuse(
      {"create", "transport", name,
       one_host ? "shm (ranks are several processes)" : "none yet across hosts", core_->rank(),
       "GroupConfig::transport or M2N_TRANSPORT"});
}

Status Creation::open_workers() {
  for (std::uint32_t index = 0; index < core_->config.workers; ++index) {
    Result<std::unique_ptr<transport::Transport>> transport = transport::open_transport(
        core_->transport_name, {core_->job, core_->config.world_rank, index});
    if (!transport) return transport.status();
    core_->workers.push_back(
        std::make_unique<Worker>(std::move(*transport), core_->config.world_rank, index));
  }
  return {};
}

Hello Creation::address_hello() const {
  Hello hello;
  for (const auto& worker : core_->workers) hello.value("address", worker->transport().address());
  return hello;
}

Status Creation::meet() {
  Result<std::vector<Hello>> hellos = gathering_->enter(first_hello());
  if (!hellos) return hellos.status();
  Status local = learn(*hellos);
  if (local) local = choose_transport(*hellos);
  if (local) local = open_workers();
  if (!local) {
    gathering_->refuse(local.text());
    return local;
  }
  hellos = gathering_->ready(address_hello());
  if (!hellos) return hellos.status();
  for (const Hello& peer : *hellos) {
    std::vector<Bytes>& addresses = core_->addresses.emplace_back();
    for (const auto& [name, bytes] : peer.values) addresses.push_back(bytes);
  }
  core_->place = gathering_->place();
  core_->wire_version = gathering_->meeting().version();
  return {};
}

Result<std::shared_ptr<GroupCore>> Creation::run() {
  GroupConfig& config = core_->config;
  if (!core_->store) {
    return transport::refuse(
        {"create", "store", "nullptr", "a store", core_->rank(), "Group::create"});
  }
  Status status = settings();
  // A group without a usable name has no place where the others could hear of it.
  if (!status && (config.name.empty() || config.name.size() > longest_name)) return status;
  if (Status begun = begin(); !begun) return begun;
  if (status) {
    status = meet();
  } else {
    gathering_->refuse(status.text());
  }
  leave(status);
  if (!status) return status;
  core_->log(LogLevel::info, "group \"" + config.name + "\" of " +
                                 std::to_string(config.attention_ranks) + " attention and " +
                                 std::to_string(config.expert_ranks) + " expert ranks is up over " +
                                 core_->transport_name + ", wire version " +
                                 std::to_string(core_->wire_version));
  return core_;
}

Status Creation::note_next() const {
  constexpr const char* setting = "the store of Group::create";
  try {
    return core_->store->set(next_key(), bytes_of(std::to_string(gathering_->number() + 1)));
  } catch (const std::exception& error) {
    return status_of(&error, "create", setting, core_->rank());
  } catch (...) {
    return status_of(nullptr, "create", setting, core_->rank());
  }
}

// The next call begins behind this meeting. If that cannot be noted it looks at this one once more,
// which is no reason to fail where all others have succeeded.
void Creation::leave(const Status& status) noexcept {
  try {
    if (const Status noted = note_next(); !noted) {
      core_->log(LogLevel::warn, "the store has not taken " + next_key() + ": " + noted.text());
    }
  } catch (...) {  // no memory for the text, or a log callback's own
  }
  if (!status) gathering_->part();
}

void Creation::give_up(const Status& status) noexcept {
  if (!gathering_) return;
  gathering_->refuse(status.text());
  leave(status);
}

}  // namespace

Status status_of(const std::exception* error, const char* function, const char* setting,
                 std::int32_t rank) {
  const bool memory = dynamic_cast<const std::bad_alloc*>(error) != nullptr ||
                      dynamic_cast<const std::length_error*>(error) != nullptr;
  if (memory) {
    return transport::refuse(
        {function, "memory", error->what(), "what this process may allocate", rank, setting},
        Code::exhausted);
  }
  return transport::refuse(
      {function, "exception", error != nullptr ? error->what() : "of an unknown type",
       "none, from a store or a callback", rank, setting},
      Code::system);
}

Result<std::shared_ptr<GroupCore>> create_group(const GroupConfig& config,
                                                std::shared_ptr<Store> store) {
  Creation creation{config, std::move(store)};
  auto failed = [&](const std::exception* error) {
    Status status = status_of(error, "create", "GroupConfig::world_size and workers",
                              static_cast<std::int32_t>(config.world_rank));
    creation.give_up(status);
    return status;
  };
  try {
    return creation.run();
  } catch (const std::exception& error) {
    return failed(&error);
  } catch (...) {
    return failed(nullptr);
  }
}

}  // namespace m2n::collectives
