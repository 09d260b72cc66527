// Opening a channel: check, register a window per pair, exchange them, attach, and let go of the
// names.
#include <algorithm>
#include <exception>
#include <string>

#include "collectives/channel_impl.hpp"
#include "collectives/gathering.hpp"
#include "collectives/layout.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {
namespace {

void describe(Hello& hello, const ChannelConfig& config) {
  hello.field("name", config.name);
  hello.field("phase", static_cast<std::uint64_t>(config.phase));
  hello.field("experts", config.experts);
  hello.field("top_k", config.top_k);
  hello.field("hidden", config.hidden);
  hello.field("max_tokens", config.max_tokens);
  hello.field("depth", config.depth);
  hello.field("payload", name(config.payload));
  std::string extra;
  for (std::uint32_t bytes : config.extra_row_bytes) extra += std::to_string(bytes) + " ";
  hello.field("extra_row_bytes", extra.empty() ? "none" : extra);
  hello.field("wire", name(config.wire));
  hello.field("output", name(config.output));
  hello.field("combine", config.combine == Combine::reduced ? "reduced" : "per_expert");
  hello.field("weights", config.weights == Weights::library ? "library" : "caller");
  hello.field("presence", config.presence == Presence::every ? "every" : "touched");
  hello.field("exchange", static_cast<std::uint64_t>(config.exchange));
  hello.field("replica_choice",
              config.replica_choice == ReplicaChoice::balanced ? "balanced" : "local_first");
  hello.field("placement.version", config.placement.version());
  hello.field("placement.hash", config.placement.hash());
}

// What this rank's ends need, or why it cannot open the channel.
class Opening {
 public:
  Opening(const std::shared_ptr<GroupCore>& group, const ChannelConfig& config,
          const OpenOptions& options)
      : group_{group}, options_{options}, impl_{std::make_shared<ChannelImpl>()} {
    impl_->group = group;
    impl_->context.group = group.get();
    impl_->context.config = config;
    impl_->expert_function = options.expert_function;
  }

  Status prepare();
  Result<Hello> windows();
  Status attach(const std::vector<Hello>& peers);
  std::shared_ptr<ChannelImpl> finish();

 private:
  Status check_worker(std::uint32_t worker, const char* field) const;
  Status make_ends();
  Status make_links(ChannelEnd& end, bool attention);
  Status attach_end(ChannelEnd& end, bool attention, const std::vector<Hello>& peers);
  static Status export_end(Hello& hello, ChannelEnd& end, bool attention);

  std::shared_ptr<GroupCore> group_;
  OpenOptions options_;
  std::shared_ptr<ChannelImpl> impl_;
};

Status Opening::check_worker(std::uint32_t worker, const char* field) const {
  if (worker < group_->workers.size()) return {};
  return {Code::invalid, Scope::operation,
          std::string{"open: "} + field + " = " + std::to_string(worker) + ", allowed: 0.." +
              std::to_string(group_->workers.size() - 1) + " (rank " +
              std::to_string(group_->rank()) + "; see GroupConfig::workers)"};
}

// Everything that a channel needs for all its rounds is allocated here.
Status Opening::prepare() {
  ChannelConfig& config = impl_->context.config;
  if (Status status = check_config(config, group_->config.expert_ranks, group_->rank()); !status)
    return status;
  if (Status status = check_worker(options_.attention_worker, "attention_worker"); !status)
    return status;
  if (Status status = check_worker(options_.expert_worker, "expert_worker"); !status) return status;
  for (const ChannelImpl* open : group_->channels) {
    if (open->context.config.name != config.name) continue;
    return transport::refuse({"open", "name", config.name, "a name that no open channel has",
                              group_->rank(), "ChannelConfig::name"});
  }
  if (!config.placement)
    config.placement = Placement::block(config.experts, group_->config.expert_ranks);
  Result<RowGeometry> row = row_geometry(config);
  if (!row) return row.status();
  if (Result<ChannelSizes> sizes =
          channel_sizes(config, group_->config.attention_ranks, group_->config.expert_ranks);
      !sizes) {
    return sizes.status();
  }
  impl_->context.row_offsets = row->offsets_bytes;
  impl_->context.row_sizes = row->sizes_bytes;
  for (std::size_t bytes : row->sizes_bytes) impl_->context.row_bytes += bytes;
  impl_->context.row_format = {impl_->context.row_offsets, impl_->context.row_sizes,
                               row->stride_bytes};
  return make_ends();
}

Status Opening::make_ends() {
  const GroupConfig& config = group_->config;
  if (config.attention_rank >= 0) {
    impl_->attention =
        std::make_unique<AttentionEnd>(impl_->context, *group_->workers[options_.attention_worker],
                                       static_cast<std::uint32_t>(config.attention_rank));
    if (Status status = make_links(*impl_->attention, true); !status) return status;
  }
  if (config.expert_rank >= 0) {
    const auto rank = static_cast<std::uint32_t>(config.expert_rank);
    impl_->expert =
        std::make_unique<ExpertEnd>(impl_->context, *group_->workers[options_.expert_worker], rank);
    if (Status status = make_links(*impl_->expert, false); !status) return status;
  }
  return {};
}

Status Opening::make_links(ChannelEnd& end, bool attention) {
  const ChannelConfig& config = impl_->context.config;
  const std::vector<std::uint32_t>& world =
      attention ? group_->expert_world : group_->attention_world;
  Result<WindowLayout> rows = dispatch_window(config, group_->config.expert_ranks);
  if (!rows) return rows.status();
  for (std::uint32_t peer = 0; peer < world.size(); ++peer) {
    const std::uint32_t expert =
        attention ? peer : static_cast<std::uint32_t>(group_->config.expert_rank);
    Result<WindowLayout> replies = reply_window(config, group_->config.attention_ranks,
                                                config.placement.local_experts(expert));
    if (!replies) return replies.status();
    const LinkSetup setup{attention ? *replies : *rows, attention ? *rows : *replies, world[peer],
                          group_->config.huge_pages};
    Result<std::unique_ptr<PairLink>> link = PairLink::create(end.worker(), setup);
    if (!link) return link.status();
    end.links().push_back(std::move(*link));
  }
  end.links_ready();
  return {};
}

// Windows are named by who they are for: "a3" = for attention rank 3, "e0" = for expert rank 0.
Status Opening::export_end(Hello& hello, ChannelEnd& end, bool attention) {
  for (std::uint32_t peer = 0; peer < end.links().size(); ++peer) {
    Result<transport::Blob> blob = end.links()[peer]->export_window();
    if (!blob) return blob.status();
    hello.value((attention ? "e" : "a") + std::to_string(peer), std::move(*blob));
  }
  return {};
}

// What this rank says to all others about the channel.
Result<Hello> Opening::windows() {
  Hello hello;
  describe(hello, impl_->context.config);
  if (impl_->attention) {
    if (Status status = export_end(hello, *impl_->attention, true); !status) return status;
  }
  if (impl_->attention && impl_->attention->wants_arena()) {
    Result<transport::Blob> arena = impl_->attention->make_arena();
    if (!arena) return arena.status();
    hello.value("arena", std::move(*arena));
  }
  if (impl_->expert) {
    if (Status status = export_end(hello, *impl_->expert, false); !status) return status;
  }
  auto put_worker = [&](const char* key, std::uint32_t worker) {
    hello.value(key, Bytes{std::byte{static_cast<unsigned char>(worker & 0xff)},
                           std::byte{static_cast<unsigned char>(worker >> 8)}});
  };
  put_worker("attention_worker", options_.attention_worker);
  put_worker("expert_worker", options_.expert_worker);
  return hello;
}

Status Opening::attach(const std::vector<Hello>& peers) {
  if (impl_->attention) {
    if (Status status = attach_end(*impl_->attention, true, peers); !status) return status;
  }
  if (!impl_->expert) return {};
  if (Status status = attach_end(*impl_->expert, false, peers); !status) return status;
  for (std::uint32_t rank = 0; rank < impl_->expert->links().size(); ++rank) {
    const Bytes* arena = peers[impl_->expert->links()[rank]->peer_rank()].find("arena");
    if (arena == nullptr && impl_->context.config.exchange != ExchangeKind::shared) continue;
    if (arena == nullptr)
      return {Code::invalid, Scope::group, "open: an attention rank has no arena"};
    if (Status status = impl_->expert->attach_arena(rank, *arena); !status) return status;
  }
  return {};
}

Status Opening::attach_end(ChannelEnd& end, bool attention, const std::vector<Hello>& peers) {
  const std::int32_t self = attention ? group_->config.attention_rank : group_->config.expert_rank;
  const std::string window = (attention ? "a" : "e") + std::to_string(self);
  for (auto& link : end.links()) {
    const Hello& hello = peers[link->peer_rank()];
    const Bytes* blob = hello.find(window);
    const Bytes* worker = hello.find(attention ? "expert_worker" : "attention_worker");
    if (blob == nullptr || worker == nullptr || worker->size() != 2) {
      return {Code::invalid, Scope::group,
              "open: world rank " + std::to_string(link->peer_rank()) +
                  " has no window for this rank " + std::to_string(group_->rank())};
    }
    const std::uint32_t index = std::to_integer<std::uint32_t>((*worker)[0]) |
                                std::to_integer<std::uint32_t>((*worker)[1]) << 8;
    const std::vector<Bytes>& addresses = group_->addresses[link->peer_rank()];
    if (index >= addresses.size()) {
      return {Code::invalid, Scope::group,
              "open: world rank " + std::to_string(link->peer_rank()) + " names worker " +
                  std::to_string(index) + " of " + std::to_string(addresses.size())};
    }
    Result<transport::PeerId> peer =
        end.worker().connect(link->peer_rank(), index, addresses[index]);
    if (!peer) return peer.status();
    if (Status status = link->attach(*peer, *blob); !status) return status;
  }
  return {};
}

std::shared_ptr<ChannelImpl> Opening::finish() {
  auto seal = [](ChannelEnd& end) {
    for (auto& link : end.links()) link->seal();
  };
  if (impl_->attention) {
    seal(*impl_->attention);
    impl_->attention->seal_arena();
  }
  if (impl_->expert) seal(*impl_->expert);
  group_->channels.push_back(impl_.get());
  group_->log(LogLevel::info, "channel \"" + impl_->context.config.name + "\" is open");
  return std::move(impl_);
}

// A failure that no other rank knows of is told to them.
Status meet(Opening& opening, Gathering& gathering) {
  Status local = opening.prepare();
  Result<Hello> windows = local ? opening.windows() : local;
  if (!windows) {
    gathering.refuse(windows.status().text());
    return windows.status();
  }
  const Result<std::vector<Hello>> peers = gathering.enter(std::move(*windows));
  if (!peers) return peers.status();
  if (local = opening.attach(*peers); !local) {
    gathering.refuse(local.text());
    return local;
  }
  return gathering.ready({}).status();
}

}  // namespace

Result<std::shared_ptr<ChannelImpl>> open_channel(const std::shared_ptr<GroupCore>& group,
                                                  const ChannelConfig& config,
                                                  const OpenOptions& options) {
  Gathering::Setup setup;
  setup.store = group->store.get();
  setup.key = group->place + "/open";
  setup.number = group->next_opening;
  setup.what = "open: channel \"" + config.name + "\"";
  setup.self.versions = versions_of(group->config.world_rank);
  setup.self.world_rank = group->config.world_rank;
  setup.self.world_size = group->config.world_size;
  setup.timeout = group->start_timeout;
  Gathering gathering{std::move(setup)};
  Opening opening{group, config, options};
  auto failed = [&](const std::exception* error) {
    Status status = status_of(error, "open", "ChannelConfig::max_tokens, top_k, capacity or depth",
                              group->rank());
    gathering.refuse(status.text());
    return status;
  };
  Status status;
  try {
    status = meet(opening, gathering);
  } catch (const std::exception& error) {
    status = failed(&error);
  } catch (...) {
    status = failed(nullptr);
  }
  group->next_opening = gathering.number() + 1;
  if (status) return opening.finish();
  gathering.part();
  return status;
}

}  // namespace m2n::collectives
