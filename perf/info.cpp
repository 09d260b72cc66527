// m2n_info: what this build can do here, and what a channel would cost. Talks to nobody.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "m2n/m2n.hpp"
#include "perf/options.hpp"

namespace m2n::perf {
namespace {

// A group of two ranks in this process over one transport, or why there is none.
Status try_transport(const std::string& transport) {
  const auto store = make_inproc_store();
  GroupConfig config = GroupConfig::both(1, 0);
  config.name = "m2n_info-" + transport;
  config.transport = transport;
  config.start_timeout = std::chrono::milliseconds{2000};
  config.log = [](LogLevel, std::int32_t, std::string_view) {};
  auto group = Group::create(config, store);
  if (!group) return group.status();
  ChannelConfig channel;
  channel.hidden = 64;
  channel.max_tokens = 1;
  auto opened = group->open(channel);
  if (!opened) return opened.status();
  (void)opened->close();
  return group->close();
}

void print_transports() {
  std::puts("transports");
  for (const char* transport : {"inproc", "shm"}) {
    const Status status = try_transport(transport);
    fmt::print(
        "  {:<8} {}\n", transport,
        status ? "available"
               : fmt::format("not available: {} ({})", status.text(), m2n::name(status.code())));
  }
}

void print_launch() {
  const auto launch = detect_launch();
  if (launch) {
    fmt::print("launch\n  rank {} of {}, from {}, store {}\n", launch->world_rank,
               launch->world_size, launch->source, launch->store);
  } else {
    fmt::print("launch\n  none: {}\n", launch.status().text());
  }
}

struct InfoOptions {
  std::string ranks = "1x1";
  std::string model = "deepseek-v3";
  std::uint32_t tokens = 128;
  std::uint32_t depth = 2;
};

Status print_sizes(const InfoOptions& o) {
  auto ranks = parse_ranks(o.ranks);
  if (!ranks) return ranks.status();
  const Model* model = find_model(o.model);
  if (model == nullptr) return {Code::invalid, Scope::operation, "m2n_info: --model is unknown"};
  ChannelConfig config;
  config.experts = model->experts;
  config.top_k = model->top_k;
  config.hidden = model->hidden;
  config.max_tokens = o.tokens;
  config.depth = o.depth;
  auto sizes = channel_sizes(config, ranks->attention, ranks->expert);
  if (!sizes) return sizes.status();
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  fmt::print(
      "channel of {} attention x {} expert ranks, {}, {} tokens, depth {}\n"
      "  payload row           {} bytes\n"
      "  reply row             {} bytes\n"
      "  dispatch slot         {:.2f} MiB\n"
      "  reply slot            {:.2f} MiB\n"
      "  attention rank window {:.2f} MiB\n"
      "  expert rank window    {:.2f} MiB\n"
      "  connections           {} (busier role)\n"
      "  descriptors           {} (busier role, while opening)\n"
      "  signal words          {} (busier role)\n",
      ranks->attention, ranks->expert, model->name, o.tokens, o.depth, sizes->row_bytes,
      sizes->reply_row_bytes, mib(sizes->dispatch_slot_bytes), mib(sizes->reply_slot_bytes),
      mib(sizes->attention_window_bytes), mib(sizes->expert_window_bytes), sizes->connections,
      sizes->descriptors, sizes->signal_words);
  return {};
}

int start(int argc, const char* const* argv) {
  InfoOptions options;
  CLI::App app{"Tells what m2n can do on this machine and what a channel costs."};
  app.name("m2n_info");
  app.add_option("--ranks", options.ranks, "attention x expert ranks, MxN")->capture_default_str();
  app.add_option("--model", options.model, "experts, top-k and hidden size of a known model")
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "tokens of one dispatch at one attention rank")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--depth", options.depth, "operations in flight")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "m2n_info: %s (see m2n_info --help)\n", error.what());
    return 2;
  }
  fmt::print("m2n {}, wire version {}\n", version(), wire_version);
  print_transports();
  print_launch();
  const Status sizes = print_sizes(options);
  if (sizes) return 0;
  std::fprintf(stderr, "%s\n", sizes.text().c_str());
  return 2;
}

}  // namespace
}  // namespace m2n::perf

int main(int argc, char** argv) {
  try {
    return m2n::perf::start(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "m2n_info: %s\n", error.what());
    return 1;
  }
}
