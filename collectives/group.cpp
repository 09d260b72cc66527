// Group::create: who is there, do all agree, and one transport instance per worker.
#include "m2n/group.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "collectives/channel_impl.hpp"
#include "collectives/group_core.hpp"
#include "transport/env.hpp"
#include "transport/text.hpp"
#include "transport/transport.hpp"

namespace m2n {

struct Group::Impl {
  std::shared_ptr<collectives::GroupCore> core;
  ~Impl();
};

namespace collectives {
namespace {

Bytes bytes_of(std::string_view text) {
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  return {from, from + text.size()};
}

std::string text_of(const Bytes* bytes) {
  return bytes == nullptr
             ? std::string{}
             : std::string{reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

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

// Creating a group, step by step.
class Creation {
 public:
  Creation(const GroupConfig& config, std::shared_ptr<Store> store)
      : core_{std::make_shared<GroupCore>()} {
    core_->config = config;
    core_->store = std::move(store);
  }
  Result<std::shared_ptr<GroupCore>> run();

 private:
  Status settings();
  Status claim();
  Status choose_transport(const std::vector<Hello>& hellos);
  Status open_workers();
  Status learn(const std::vector<Hello>& hellos);
  Hello first_hello() const;
  Hello address_hello() const;
  Stage stage(const char* name) const {
    return {core_->store.get(), core_->prefix + "/" + name, core_->config.world_size,
            core_->start_timeout};
  }

  std::shared_ptr<GroupCore> core_;
  transport::Environment environment_;
};

Status Creation::settings() {
  if (Status status = check_config(core_->config); !status) return status;
  if (!core_->store) {
    return transport::refuse(
        {"create", "store", "nullptr", "a store", core_->rank(), "Group::create"});
  }
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
  core_->log = transport::Log{config.log, core_->rank()};
  return {};
}

// The n-th group of that name in this store; a rank that is there twice shows here.
Status Creation::claim() {
  const GroupConfig& config = core_->config;
  const std::string name = "m2n/" + config.name;
  const std::string rank = std::to_string(config.world_rank);
  Result<std::int64_t> generation = core_->store->add(name + "/generation/" + rank, 1);
  if (!generation) return generation.status();
  core_->prefix = name + "/" + std::to_string(*generation);
  return {};
}

Hello Creation::first_hello() const {
  const GroupConfig& config = core_->config;
  Hello hello;
  hello.world_rank = config.world_rank;
  hello.field("attention_ranks", config.attention_ranks);
  hello.field("expert_ranks", config.expert_ranks);
  hello.field("world_size", config.world_size);
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
  const std::string host = text_of(hellos[core.config.world_rank].find("host"));
  std::uint32_t on_this_host = 0;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const Hello& hello : hellos) {
    const bool local = text_of(hello.find("host")) == host;
    auto place = [&](const char* role, std::vector<std::uint32_t>& world) -> Status {
      const int index = std::atoi(text_of(hello.find(role)).c_str());
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
    const int expert = std::atoi(text_of(hello.find("expert_rank")).c_str());
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
  core.job = text_of(hellos[0].find("job"));
  return {};
}

Status Creation::choose_transport(const std::vector<Hello>& hellos) {
  const Hello& mine = hellos[core_->config.world_rank];
  auto same = [&](const char* what) {
    return std::all_of(hellos.begin(), hellos.end(), [&](const Hello& hello) {
      return text_of(hello.find(what)) == text_of(mine.find(what));
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
  hello.world_rank = core_->config.world_rank;
  for (const auto& worker : core_->workers) hello.value("address", worker->transport().address());
  return hello;
}

Result<std::shared_ptr<GroupCore>> Creation::run() {
  Status local = settings();
  if (!local && (!core_->store || core_->config.world_rank >= core_->config.world_size))
    return local;
  if (Status status = claim(); !status) return status;
  Hello hello = first_hello();
  hello.refusal = local.text();
  if (!local) {
    announce_refusal(stage("roles"), hello);
    return local;
  }
  Result<std::vector<Hello>> hellos = exchange(stage("roles"), hello);
  if (!hellos) return hellos.status();
  if (Status status = learn(*hellos); !status) return status;  // the same on every rank
  if (Status status = choose_transport(*hellos); !status) return status;
  local = open_workers();
  hello = address_hello();
  hello.refusal = local.text();
  if (!local) {
    announce_refusal(stage("addresses"), hello);
    return local;
  }
  hellos = exchange(stage("addresses"), hello);
  if (!hellos) return hellos.status();
  for (const Hello& peer : *hellos) {
    std::vector<Bytes>& addresses = core_->addresses.emplace_back();
    for (const auto& [name, bytes] : peer.values) addresses.push_back(bytes);
  }
  core_->log(LogLevel::info, "group \"" + core_->config.name + "\" of " +
                                 std::to_string(core_->config.attention_ranks) + " attention and " +
                                 std::to_string(core_->config.expert_ranks) +
                                 " expert ranks is up over " + core_->transport_name);
  return core_;
}

}  // namespace
}  // namespace collectives

Group::Impl::~Impl() {
  while (core && !core->channels.empty()) core->channels.back()->close();
}

Result<Group> Group::create(const GroupConfig& config, std::shared_ptr<Store> store) {
  Result<std::shared_ptr<collectives::GroupCore>> core =
      collectives::Creation{config, std::move(store)}.run();
  if (!core) return core.status();
  Group group;
  group.impl_ = std::make_shared<Impl>();
  group.impl_->core = std::move(*core);
  return group;
}

Result<Channel> Group::open(const ChannelConfig& config, const OpenOptions& options) {
  if (!impl_)
    return transport::refuse(
        {"open", "group", "empty", "one from Group::create", -1, "Group::create"});
  if (!impl_->core->owned()) return collectives::used_in_child("open", impl_->core->rank());
  Result<std::shared_ptr<ChannelImpl>> impl =
      collectives::open_channel(impl_->core, config, options);
  if (!impl) return impl.status();
  return ChannelImpl::handle(std::move(*impl));
}

Status Group::progress(std::uint32_t worker) {
  if (!impl_)
    return transport::refuse(
        {"progress", "group", "empty", "one from Group::create", -1, "Group::create"});
  collectives::GroupCore& core = *impl_->core;
  if (!core.owned()) return collectives::used_in_child("progress", core.rank());
  if (worker >= core.workers.size()) {
    return transport::refuse({"progress", "worker", std::to_string(worker),
                              "0.." + std::to_string(core.workers.size() - 1), core.rank(),
                              "GroupConfig::workers"});
  }
  core.workers[worker]->pump();
  for (ChannelImpl* channel : core.channels) {
    if (channel->attention && &channel->attention->worker() == core.workers[worker].get()) {
      channel->attention->pump();
      channel->attention->reap();
    }
    if (channel->expert && &channel->expert->worker() == core.workers[worker].get())
      channel->expert->pump();
  }
  return {};
}

Status Group::close() {
  if (!impl_) return {};
  if (!impl_->core->owned()) return collectives::used_in_child("close", impl_->core->rank());
  while (!impl_->core->channels.empty()) impl_->core->channels.back()->close();
  return {};
}

const GroupConfig& Group::config() const noexcept {
  static const GroupConfig none;
  return impl_ ? impl_->core->config : none;
}

std::string Group::transport() const {
  return impl_ ? impl_->core->transport_name : std::string{};
}

}  // namespace m2n
