// Contradictions are found here, before anything runs.
#include "perf/setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "perf/placement_file.hpp"

namespace m2n::perf {
namespace {

template <class... Args>
Status bad(fmt::format_string<Args...> text, Args&&... args) {
  return {Code::invalid, Scope::operation,
          "m2n_perf: " + fmt::format(text, std::forward<Args>(args)...)};
}

Status settle_ranks(Setup& setup, const std::optional<World>& world) {
  const Options& o = setup.options;
  if (world && world->size == 1) {
    return bad(
        "started as 1 process by {}, allowed: M + N >= 2 processes (mpirun -n 2 ..., or alone with "
        "--ranks MxN)",
        world->source);
  }
  if (world && !o.ranks && world->size % 2 != 0) {
    return bad("started as {} processes by {}, which is no M + M; give --ranks MxN", world->size,
               world->source);
  }
  const std::uint32_t half = world ? world->size / 2 : 1;
  const Ranks ranks = o.ranks.value_or(Ranks{half, half});
  if (world && ranks.attention + ranks.expert != world->size) {
    return bad("--ranks = {}x{} needs {} processes, {} started {}", ranks.attention, ranks.expert,
               ranks.attention + ranks.expert, world->source, world->size);
  }
  setup.attention_ranks = ranks.attention;
  setup.expert_ranks = ranks.expert;
  if (world && o.transport == "inproc") {
    return bad("--transport = inproc, allowed under {}: auto, shm (ranks are processes)",
               world->source);
  }
  return {};
}

Status settle_shape(Setup& setup) {
  const Options& o = setup.options;
  const Model* model = find_model(o.model);
  if (model == nullptr) return bad("--model = {} is unknown", o.model);
  auto routing = parse_routing(o.routing);
  if (!routing) return routing.status();
  setup.routing = std::move(*routing);
  setup.experts = o.experts.value_or(model->experts);
  setup.top_k = o.top_k.value_or(model->top_k);
  setup.hidden = o.hidden.value_or(model->hidden);
  if (const Trace* trace = setup.routing.trace.get()) {
    if (o.experts && *o.experts != trace->experts) {
      return bad("--experts = {}, but {} was recorded with {} experts", *o.experts, o.routing,
                 trace->experts);
    }
    if (o.top_k && *o.top_k != trace->top_k) {
      return bad("--top-k = {}, but {} was recorded with top-{}", *o.top_k, o.routing,
                 trace->top_k);
    }
    setup.experts = trace->experts;
    setup.top_k = trace->top_k;
  }
  if (setup.top_k > setup.experts) {
    return bad("--top-k = {}, allowed: 1..{} (--experts)", setup.top_k, setup.experts);
  }
  if (setup.routing.kind == RoutingKind::all_to && setup.routing.target >= setup.experts) {
    return bad("--routing = {}, allowed: all-to:0..{} (--experts)", o.routing, setup.experts - 1);
  }
  setup.wire = setup.byte_payload() ? DataType::bf16 : o.dtype;
  auto placement = read_placement(o.placement, setup.experts, setup.expert_ranks);
  if (!placement) return placement.status();
  setup.placement = std::move(*placement);
  return {};
}

Status settle_run(const Setup& setup, const std::optional<World>& world) {
  const Options& o = setup.options;
  if (o.micro_batches > o.depth) {
    return bad("--micro-batches = {}, allowed: 1..{} (--depth)", o.micro_batches, o.depth);
  }
  if (o.max_tokens != 0 && setup.whole_because() != nullptr)
    return bad("--max-tokens = {}, allowed with {}", o.max_tokens, setup.whole_because());
  if (o.receive == Receive::early && (o.layout != Layout::rows || size_of(o.dtype) == 1)) {
    return bad("--receive = early, allowed with --layout rows and --dtype bf16, f16, f32");
  }
  if (o.input == Input::arena && o.exchange == ExchangeKind::push) {
    return bad("--input = arena, allowed with --exchange auto, shared (push copies rows anyway)");
  }
  if (o.op == Op::put && o.baseline != Baseline::none) {
    return bad("--baseline = mpi, allowed with --op dispatch, combine, roundtrip");
  }
  if (o.baseline == Baseline::none) return {};
  if (!world || (world->source != "open-mpi" && world->source != "pmi")) {
    return bad("--baseline = mpi needs mpirun: mpirun -n {} m2n_perf ...", setup.ranks());
  }
  if (o.micro_batches != 1) {
    return bad("--micro-batches = {}, allowed with --baseline mpi: 1", o.micro_batches);
  }
  if (o.combine != Combine::reduced) {
    return bad("--combine = per-expert, allowed with --baseline mpi: reduced");
  }
  const std::size_t row =
      std::max(setup.row_bytes(), setup.wire_row_bytes()) + 32 + std::size_t{setup.top_k} * 8;
  for (const std::uint32_t tokens : o.tokens) {
    const std::size_t most = row * tokens * std::max(setup.attention_ranks, setup.expert_ranks);
    if (most <= std::size_t{std::numeric_limits<int>::max()}) continue;
    return bad("--tokens = {} with --baseline mpi: {} bytes, allowed: up to {} (MPI counts in int)",
               tokens, most, std::numeric_limits<int>::max());
  }
  if (setup.placement.max_parts() > 1 || setup.placement.replicated()) {
    return bad("--placement = {} has parts or replicas, allowed with --baseline mpi: one of each",
               o.placement);
  }
  return {};
}

}  // namespace

const char* Setup::whole_because() const noexcept {
  if (options.op != Op::roundtrip) return "--op roundtrip";
  if (options.layout != Layout::rows) return "--layout rows";
  if (options.input != Input::own) return "--input private";
  if (options.micro_batches != 1) return "--micro-batches 1";
  return byte_payload() ? "--dtype bf16, f16, f32" : nullptr;
}

std::uint32_t Setup::piece(std::uint32_t tokens) const noexcept {
  constexpr std::size_t large = std::size_t{8} << 20;        // more does not stay in the caches
  constexpr std::size_t huge = std::size_t{24} << 20;        // x and the output do not, either
  constexpr std::size_t piece_bytes = std::size_t{7} << 19;  // 256 rows of 14 KiB
  if (options.max_tokens != 0) return std::min(options.max_tokens, tokens);
  const std::size_t bytes = tokens * row_bytes();
  if (whole_because() != nullptr || bytes <= large || bytes > huge) return tokens;
  return static_cast<std::uint32_t>(std::max<std::size_t>(piece_bytes / row_bytes(), 1));
}

ChannelConfig Setup::channel(std::uint32_t tokens) const {
  ChannelConfig config;
  config.name = "tokens-" + std::to_string(tokens);
  config.experts = experts;
  config.top_k = top_k;
  config.hidden = hidden;
  config.max_tokens = piece(tokens);
  config.depth = options.depth;
  config.payload = options.dtype;
  config.wire = config.output = wire;
  config.combine = options.combine;
  config.exchange = options.exchange;
  config.placement = placement;
  config.layout = options.layout;
  return config;
}

Result<Setup> settle(const Options& options, const std::optional<World>& world) {
  Setup setup;
  setup.options = options;
  if (Status status = settle_ranks(setup, world); !status) return status;
  if (Status status = settle_shape(setup); !status) return status;
  if (Status status = settle_run(setup, world); !status) return status;
  return setup;
}

std::string describe(const Setup& setup) {
  const Options& o = setup.options;
  const char* const layouts[] = {"rows", "grouped", "packed"};
  const char* const exchanges[] = {"auto", "push", "shared"};
  std::string tokens;
  for (const std::uint32_t size : o.tokens) tokens += fmt::format(" {}", size);
  return fmt::format(
      "m2n_perf {}: {} attention x {} expert ranks, transport {}, exchange {}\n"
      "  layer     {} experts, top-{}, hidden {}, {} rows of {} bytes\n"
      "  routing   {}, placement {}, layout {}, combine {}\n"
      "  run       depth {}, micro-batches {}, input {}, bind {}, check {}, baseline {}\n"
      "  tokens    per attention rank:{}\n",
      name(o.op), setup.attention_ranks, setup.expert_ranks, o.transport,
      exchanges[static_cast<int>(o.exchange)], setup.experts, setup.top_k, setup.hidden,
      m2n::name(o.dtype), setup.row_bytes(), o.routing, o.placement,
      layouts[static_cast<int>(o.layout)], o.combine == Combine::reduced ? "reduced" : "per-expert",
      o.depth, o.micro_batches, o.input == Input::own ? "private" : "arena", o.bind ? "on" : "off",
      o.check ? "on" : "off", o.baseline == Baseline::none ? "none" : "mpi", tokens);
}

}  // namespace m2n::perf
