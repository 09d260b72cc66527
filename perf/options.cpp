// The command line of m2n_perf, by CLI11.
#include "perf/options.hpp"

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>

#include "m2n/version.hpp"

namespace m2n::perf {
namespace {

constexpr std::array<Model, 4> models{{{"deepseek-v3", 256, 8, 7168},
                                       {"qwen3-235b", 128, 8, 4096},
                                       {"glm-4.5-air", 128, 8, 4096},
                                       {"mixtral-8x7b", 8, 2, 4096}}};
constexpr std::uint32_t most_tokens = 1U << 20;

Status refuse(const std::string& option, const std::string& value, const std::string& allowed) {
  return {Code::invalid, Scope::operation,
          "m2n_perf: " + option + " = " + value + ", allowed: " + allowed};
}

// The whole text as a number, or nothing.
std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end.ec != std::errc{} || end.ptr != text.data() + text.size()) return {};
  return value;
}

template <class T>
using Words = std::vector<std::pair<std::string, T>>;

// An option that takes one of a few words.
template <class T>
void add_words(CLI::App& app, const std::string& option, T& value, const std::string& help,
               const Words<T>& words) {
  std::vector<std::string> allowed;
  std::string fallback;
  for (const auto& [word, meaning] : words) {
    allowed.push_back(word);
    if (meaning == value) fallback = word;
  }
  auto take = [&value, words](const std::string& text) {
    for (const auto& [word, meaning] : words) {
      if (word == text) value = meaning;
    }
  };
  app.add_option_function<std::string>(option, take, help)
      ->check(CLI::IsMember(allowed))
      ->default_str(fallback);
}

struct Texts {
  std::string ranks;
  std::string tokens = "1:1024:x4";
};

void add_shape(CLI::App& app, Options& o, Texts& texts) {
  app.add_option("--ranks", texts.ranks, "attention x expert ranks, MxN");
  app.add_option("--transport", o.transport, "what carries the bytes")
      ->check(CLI::IsMember({"auto", "inproc", "shm"}))
      ->capture_default_str();
  add_words<ExchangeKind>(app, "--exchange", o.exchange, "who copies rows",
                          {{"auto", ExchangeKind::automatic},
                           {"push", ExchangeKind::push},
                           {"shared", ExchangeKind::shared}});
  std::vector<std::string> names;
  for (const Model& model : models) names.emplace_back(model.name);
  app.add_option("--model", o.model, "experts, top-k and hidden size of a known model")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  app.add_option("--experts", o.experts, "experts of the layer")->check(CLI::Range(1, 1 << 20));
  app.add_option("--top-k", o.top_k, "experts of a token")->check(CLI::Range(1, 128));
  app.add_option("--hidden", o.hidden, "elements of a token's vector")
      ->check(CLI::Range(1, 1 << 20));
  add_words<DataType>(app, "--dtype", o.dtype, "element type of the dispatched rows",
                      {{"bf16", DataType::bf16},
                       {"f16", DataType::f16},
                       {"f32", DataType::f32},
                       {"fp8", DataType::fp8_e4m3},
                       {"i8", DataType::i8}});
  app.add_option("--tokens", texts.tokens,
                 "tokens per attention rank: B, B:E or B:E:xF, or a list of these")
      ->capture_default_str();
  app.add_option("--routing", o.routing, "uniform | zipf:A | all-to:E | file:PATH")
      ->capture_default_str();
  app.add_option("--placement", o.placement, "block | file:PATH")->capture_default_str();
  add_words<Layout>(
      app, "--layout", o.layout, "how a batch lies at the experts",
      {{"rows", Layout::rows}, {"grouped", Layout::grouped}, {"packed", Layout::packed}});
}

void add_run(CLI::App& app, Options& o) {
  add_words<Op>(app, "--op", o.op, "what is measured",
                {{"dispatch", Op::dispatch},
                 {"combine", Op::combine},
                 {"roundtrip", Op::roundtrip},
                 {"put", Op::put}});
  app.add_option("--depth", o.depth, "operations in flight that the channel has room for")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--micro-batches", o.micro_batches, "operations in flight that the tool keeps")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--max-tokens", o.max_tokens,
                 "tokens of one operation; larger batches go in pieces (default: by size)")
      ->check(CLI::Range(1, 1 << 20));
  add_words<Combine>(app, "--combine", o.combine, "who adds a token's experts",
                     {{"reduced", Combine::reduced}, {"per-expert", Combine::per_expert}});
  add_words<Input>(app, "--input", o.input, "where x is written",
                   {{"private", Input::own}, {"arena", Input::arena}});
  add_words<Receive>(
      app, "--receive", o.receive, "when expert ranks begin: auto = early if every rank has a core",
      {{"auto", Receive::automatic}, {"whole", Receive::whole}, {"early", Receive::early}});
  add_words<Wait>(app, "--wait", o.wait, "how a blocked rank waits",
                  {{"auto", Wait::automatic},
                   {"spin", Wait::spin},
                   {"yield", Wait::yield},
                   {"sleep", Wait::sleep}});
  app.add_option("--iters", o.iterations, "timed iterations per size (default: half a second)")
      ->check(CLI::Range(1, 10'000'000));
  app.add_option("--warmup", o.warmup, "untimed iterations per size (default: by size)")
      ->check(CLI::Range(1, 1'000'000));
  add_words<bool>(app, "--bind", o.bind, "bind ranks to cores", {{"on", true}, {"off", false}});
  add_words<bool>(app, "--check", o.check, "check the data", {{"on", true}, {"off", false}});
  add_words<Baseline>(app, "--baseline", o.baseline, "the same rounds by something else, in turns",
                      {{"none", Baseline::none}, {"mpi", Baseline::mpi}});
  app.add_option("--json", o.json, "file for one JSON line per size and core state");
  app.add_flag("--corrupt", o.corrupt)->group("");
}

}  // namespace

const char* name(Op op) noexcept {
  switch (op) {
    case Op::dispatch:
      return "dispatch";
    case Op::combine:
      return "combine";
    case Op::roundtrip:
      return "roundtrip";
    case Op::put:
      return "put";
  }
  return "unknown";
}

const Model* find_model(const std::string& name) noexcept {
  for (const Model& model : models) {
    if (name == model.name) return &model;
  }
  return nullptr;
}

Result<Ranks> parse_ranks(const std::string& text) {
  const std::string allowed = "MxN with 1..256 attention and 1..256 expert ranks, such as 2x2";
  const auto cross = text.find('x');
  if (cross == std::string::npos) return refuse("--ranks", text, allowed);
  const auto m = number(std::string_view{text}.substr(0, cross));
  const auto n = number(std::string_view{text}.substr(cross + 1));
  if (!m || !n || *m < 1 || *n < 1 || *m > 256 || *n > 256) {
    return refuse("--ranks", text, allowed);
  }
  return Ranks{*m, *n};
}

namespace {

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> fields;
  for (;;) {
    const auto end = text.find(at);
    fields.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return fields;
    text.remove_prefix(end + 1);
  }
}

// Appends the sizes of B, B:E or B:E:xF; false if it is none of them.
bool add_sizes(std::string_view range, std::vector<std::uint32_t>& sizes) {
  const std::vector<std::string_view> fields = split(range, ':');
  if (fields.size() > 3) return false;
  const auto begin = number(fields[0]);
  const auto end = fields.size() > 1 ? number(fields[1]) : begin;
  std::optional<std::uint32_t> factor = 2;
  if (fields.size() == 3) {
    if (fields[2].empty() || fields[2][0] != 'x') return false;
    factor = number(fields[2].substr(1));
  }
  if (!begin || !end || !factor || *begin < 1 || *end < *begin || *end > most_tokens ||
      *factor < 2) {
    return false;
  }
  for (std::uint64_t size = *begin; size <= *end; size *= *factor) {
    sizes.push_back(static_cast<std::uint32_t>(size));
  }
  return true;
}

}  // namespace

Result<std::vector<std::uint32_t>> parse_tokens(const std::string& text) {
  std::vector<std::uint32_t> sizes;
  for (const std::string_view range : split(text, ',')) {
    if (add_sizes(range, sizes)) continue;
    return refuse("--tokens", text,
                  "B, B:E or B:E:xF with 1 <= B <= E <= 1048576 and F >= 2, such as 1:1024:x4, or "
                  "several of them: 1,8,100");
  }
  return sizes;
}

Result<Parsed> parse_options(int argc, const char* const* argv) {
  Parsed parsed;
  Texts texts;
  CLI::App app{"Measures m2n: dispatch and combine between M attention and N expert ranks."};
  app.name("m2n_perf");
  app.set_version_flag("--version", std::string{"m2n_perf "} + version());
  add_shape(app, parsed.options, texts);
  add_run(app, parsed.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    parsed.text = app.help();
    return parsed;
  } catch (const CLI::CallForVersion& version_text) {
    parsed.text = std::string{version_text.what()} + "\n";
    return parsed;
  } catch (const CLI::ParseError& error) {
    return Status{Code::invalid, Scope::operation,
                  std::string{"m2n_perf: "} + error.what() + " (see m2n_perf --help)"};
  }
  if (!texts.ranks.empty()) {
    auto ranks = parse_ranks(texts.ranks);
    if (!ranks) return ranks.status();
    parsed.options.ranks = *ranks;
  }
  auto tokens = parse_tokens(texts.tokens);
  if (!tokens) return tokens.status();
  parsed.options.tokens = std::move(*tokens);
  return parsed;
}

}  // namespace m2n::perf
