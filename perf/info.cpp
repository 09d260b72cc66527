// m2n_info: what this build can do here, how the library decides what is not set, and what a
// channel would cost. Talks to nobody.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

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

// Of the instruction sets that the row kernels ask for, what /proc/cpuinfo says of the first core.
std::string cpu_flags() {
  constexpr const char* wanted[] = {"avx2",     "fma",      "f16c",     "avx512f",
                                    "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"};
  std::ifstream file{"/proc/cpuinfo"};
  std::string line;
  while (std::getline(file, line) && line.rfind("flags", 0) != 0) {
  }
  std::string found;
  std::istringstream words{line};
  for (std::string word; words >> word;) {
    for (const char* flag : wanted) {
      if (word == flag) found += (found.empty() ? "" : " ") + word;
    }
  }
  return found.empty() ? "none of the vector sets they know" : found;
}

void print_choices() {
  fmt::print(
      "\nrows\n"
      "  kernels   the first of avx512-bf16, avx512, avx2, portable that the CPU can run; all "
      "give\n"
      "            the same bits\n"
      "  this CPU  {}\n"
      "  stores    plain or streaming (around the caches), chosen per pair while it runs: one row\n"
      "            is timed now and then; very large operations always stream\n"
      "\nexchange = automatic, chosen by each attention rank for each operation\n"
      "  x in the arena  shared: the expert ranks read its rows there (Channel::arena_acquire)\n"
      "  x elsewhere     push: each row is copied to every expert rank that needs it; or copied\n"
      "                  once into the arena and read from there, if that costs this rank less:\n"
      "                  both are timed as they are used, the other one is tried now and then\n"
      "  push alone      where hardly any token goes to more than one expert rank, and over\n"
      "                  transports that do not map peers' memory\n"
      "  exchange = push or shared in the configuration decides for good\n",
      cpu_flags());
}

struct InfoOptions {
  std::string ranks = "1x1";
  std::string model = "deepseek-v3";
  std::uint32_t tokens = 128;
  std::uint32_t depth = 2;
  std::string layout = "rows";
  std::string exchange = "auto";
};

Result<ChannelConfig> channel_of(const InfoOptions& o) {
  const Model* model = find_model(o.model);
  if (model == nullptr) {
    return Status{Code::invalid, Scope::operation,
                  "m2n_info: --model = " + o.model + " is unknown"};
  }
  ChannelConfig config;
  config.experts = model->experts;
  config.top_k = model->top_k;
  config.hidden = model->hidden;
  config.max_tokens = o.tokens;
  config.depth = o.depth;
  if (o.layout == "grouped") config.layout = Layout::grouped;
  if (o.layout == "packed") config.layout = Layout::packed;
  if (o.exchange == "push") config.exchange = ExchangeKind::push;
  if (o.exchange == "shared") config.exchange = ExchangeKind::shared;
  return config;
}

// 14336 B, 212 KiB, 3.50 MiB, ...
std::string size_text(std::size_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 100'000) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, unit < 2 || value >= 1000 ? 0 : 2, units[unit]);
}

// One line of the table by role; nothing = that role has none of it.
void print_memory(const char* what, std::optional<std::size_t> attention,
                  std::optional<std::size_t> expert) {
  const auto cell = [](std::optional<std::size_t> bytes) {
    return bytes ? size_text(*bytes) : std::string{"-"};
  };
  fmt::print("  {:<52} {:>11} {:>11}\n", what, cell(attention), cell(expert));
}

void print_count(const char* what, std::uint64_t count, const char* of) {
  fmt::print("  {:<20} {:>5}{}\n", what, count, of);
}

Status print_sizes(const InfoOptions& o) {
  constexpr unsigned event_descriptors = 3;  // docs/threads.md
  auto ranks = parse_ranks(o.ranks);
  if (!ranks) return ranks.status();
  auto config = channel_of(o);
  if (!config) return config.status();
  auto sizes = channel_sizes(*config, ranks->attention, ranks->expert);
  if (!sizes) return sizes.status();
  fmt::print(
      "\nchannel of {} attention x {} expert ranks, {}, {} tokens, depth {}, layout {}, exchange "
      "{}\n",
      ranks->attention, ranks->expert, o.model, o.tokens, o.depth, o.layout, o.exchange);
  fmt::print("  {:<52} {:>11} {:>11}\n", "", "dispatch", "reply");
  print_memory("one row", sizes->row_bytes, sizes->reply_row_bytes);
  print_memory("one slot: what a pair exchanges in an operation", sizes->dispatch_slot_bytes,
               sizes->reply_slot_bytes);
  fmt::print("  {:<52} {:>11} {:>11}\n", "memory of one rank", "attention", "expert");
  print_memory("windows: slots that its peers write", sizes->attention_window_bytes,
               sizes->expert_window_bytes);
  print_memory("arena: rows that expert ranks read in place", sizes->arena_bytes, {});
  print_memory("host: plans, ledgers, lists of pairs", sizes->attention_host_bytes,
               sizes->expert_host_bytes);
  print_memory("total", sizes->attention_bytes, sizes->expert_bytes);
  print_memory("more where peers' memory is not mapped: staging", sizes->attention_staging_bytes,
               sizes->expert_staging_bytes);
  print_memory("more for grouped or packed batches: address space", {}, sizes->grouped_bytes);
  std::puts("of the busier role");
  print_count("connections", sizes->connections, "");
  print_count("descriptors", sizes->descriptors, "  while the channel opens");
  print_count("event descriptors", event_descriptors,
              "  more for each worker that asks for Group::event_descriptor");
  print_count("signal words", sizes->signal_words, "");
  return {};
}

int start(int argc, const char* const* argv) {
  InfoOptions options;
  CLI::App app{"Tells what m2n can do on this machine, how it chooses, and what a channel costs."};
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
  app.add_option("--layout", options.layout, "how a batch lies at the experts")
      ->check(CLI::IsMember({"rows", "grouped", "packed"}))
      ->capture_default_str();
  app.add_option("--exchange", options.exchange, "who copies rows")
      ->check(CLI::IsMember({"auto", "push", "shared"}))
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
  print_choices();
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
