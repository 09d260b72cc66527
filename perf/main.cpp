// m2n_perf: reads the command line, becomes one rank (under a launcher) or starts all of them, and
// prints what was measured.
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>

#include "m2n/m2n.hpp"
#include "perf/baseline_engine.hpp"
#include "perf/bench.hpp"
#include "perf/put.hpp"
#include "perf/ranks.hpp"
#include "perf/report.hpp"

namespace m2n::perf {
namespace {

constexpr int failure = 1;
constexpr int usage = 2;

// One rank of the run, on its own thread or process.
class Rank {
 public:
  Rank(const Setup& setup, Board board, std::uint32_t rank, std::string launcher)
      : setup_{setup}, board_{std::move(board)}, rank_{rank}, launcher_{std::move(launcher)} {}

  int main(std::shared_ptr<Store> store);

 private:
  Status start();
  Status open_json();
  Status load_baseline();
  Status bind();
  Status run_rounds(const std::shared_ptr<Store>& store);
  Status run_transport(const std::shared_ptr<Store>& store);
  Status check_failed(const std::string& where);
  void complain(const Status& status) const;
  void give_up(const Status& status);
  Status print_size(const SizeRun& run);
  Status print_json(const std::string& line);
  bool leader() const noexcept { return rank_ == 0; }

  const Setup& setup_;
  Board board_;
  std::uint32_t rank_;
  std::string launcher_;
  RunFacts facts_;
  std::optional<FlagProbe> probe_;
  std::ofstream json_;
  std::unique_ptr<BaselineLibrary> baseline_;
  bool agreed_ = false;  // all ranks end for the same reason, and rank 0 has told it
};

// What can fail without a measurement fails before one, on all ranks.
Status Rank::start() {
  if (Status ok = open_json(); !ok) return ok;
  if (Status all = board_.barrier(); !all) return all;
  if (setup_.options.baseline == Baseline::mpi) {
    if (Status ok = load_baseline(); !ok) return ok;
  }
  return bind();  // after MPI, which may bind too
}

Status Rank::open_json() {
  const std::string& path = setup_.options.json;
  if (path.empty() || !leader()) return {};
  json_.open(path, std::ios::trunc);
  if (json_.is_open()) return {};
  return {Code::invalid, Scope::operation,
          "m2n_perf: --json = " + path + ": " + std::strerror(errno)};
}

// Nobody enters MPI_Init, which waits for all, before all have the module.
Status Rank::load_baseline() {
  auto loaded = BaselineLibrary::load(launcher_);
  if (!loaded) return loaded.status();
  baseline_ = std::move(*loaded);
  if (Status all = board_.barrier(); !all) return all;
  if (Status ok = baseline_->start(rank_, setup_.ranks()); !ok) return ok;
  facts_.baseline = baseline_->module().library;
  return board_.barrier();
}

// Binds this rank, and finds out who of the others sits on another core than rank 0.
Status Rank::bind() {
  double& own = board_.number(rank_, Number::core);
  own = -1;
  const std::vector<int> cores = usable_cores();
  if (setup_.options.bind && !cores.empty()) {
    const auto count = static_cast<std::uint32_t>(cores.size());
    const int core = cores[core_index(rank_, setup_.attention_ranks, setup_.expert_ranks, count)];
    if (bind_to(core)) own = core;
  }
  facts_.oversubscribed = setup_.ranks() > cores.size();
  if (Status all = board_.barrier(); !all) return all;
  std::uint32_t peer = 0;
  for (std::uint32_t rank = setup_.ranks() - 1; rank > 0; --rank) {
    const double core = board_.number(rank, Number::core);
    if (core < 0) facts_.bound = false;
    if (core < 0 || core != board_.number(0, Number::core)) peer = rank;
  }
  if (board_.number(0, Number::core) < 0) facts_.bound = false;
  probe_.emplace(rank_, peer);
  return board_.barrier();
}

Status Rank::print_json(const std::string& line) {
  if (setup_.options.json.empty()) return {};
  json_ << line << std::endl;
  if (json_) return {};
  return {Code::system, Scope::operation,
          "m2n_perf: --json = " + setup_.options.json + ": cannot write"};
}

// All ranks know of the wrong rows; rank 0 speaks, and nobody leaves before it has.
Status Rank::check_failed(const std::string& where) {
  if (leader()) {
    std::fprintf(stderr, "m2n_perf: data check failed: %s; no numbers\n", where.c_str());
  }
  (void)board_.barrier();
  agreed_ = true;
  return Code::cancelled;
}

// Numbers appear only here, and only if every row was right.
Status Rank::print_size(const SizeRun& run) {
  if (run.wrong != 0) {
    return check_failed(std::to_string(run.wrong) + " wrong rows at " + std::to_string(run.tokens) +
                        " tokens (" + run.wrong_engine + ")");
  }
  if (!leader()) return {};
  const std::vector<Line> lines = summarise(setup_, facts_, run);
  for (const Line& line : lines) {
    std::fputs(table_row(setup_, line).c_str(), stdout);
    if (Status ok = print_json(to_json(line)); !ok) return ok;
  }
  if (lines.empty()) {
    std::printf("%7u   every block saw the cores change their state; run it again\n", run.tokens);
  }
  std::fflush(stdout);
  return {};
}

Status Rank::run_rounds(const std::shared_ptr<Store>& store) {
  GroupConfig config = GroupConfig::split(setup_.attention_ranks, setup_.expert_ranks, rank_);
  config.transport = setup_.options.transport;
  config.wait = setup_.options.wait;
  auto group = Group::create(config, store);
  if (!group) return group.status();
  facts_.transport = group->transport();
  if (leader()) {
    std::printf("  ranks     transport %s, %s%s%s\n\n%s", facts_.transport.c_str(),
                facts_.bound ? "bound" : "not bound",
                facts_.oversubscribed ? ", oversubscribed: more ranks than cores" : "",
                baseline_ ? (", baseline " + facts_.baseline).c_str() : "",
                table_head(setup_).c_str());
    std::fflush(stdout);
  }
  const Runner runner{&setup_,
                      &board_,
                      &*probe_,
                      &*group,
                      baseline_.get(),
                      rank_,
                      facts_.oversubscribed,
                      leader() && ::isatty(STDERR_FILENO) != 0,
                      [this](const Status& status) { give_up(status); }};
  for (const std::uint32_t tokens : setup_.options.tokens) {
    auto run = run_size(runner, tokens);
    if (!run) return run.status();
    if (Status ok = print_size(*run); !ok) return ok;
  }
  return group->close();
}

Status Rank::run_transport(const std::shared_ptr<Store>& store) {
  auto lines = run_put(setup_, board_, *probe_, store, rank_);
  if (!lines) return lines.status();
  if (leader()) std::fputs(put_table_head().c_str(), stdout);
  for (const PutLine& line : *lines) {
    if (line.wrong != 0) {
      return check_failed(std::to_string(line.wrong) + " wrong bytes in puts of " +
                          std::to_string(line.bytes));
    }
    if (!leader()) continue;
    std::fputs(table_row(line).c_str(), stdout);
    if (Status ok = print_json(to_json(line)); !ok) return ok;
  }
  return {};
}

// Of a failure elsewhere the rank that failed speaks.
void Rank::complain(const Status& status) const {
  if (status || status.code() == Code::cancelled) return;
  std::fprintf(stderr, "m2n_perf: rank %u: %s%s%s\n", rank_, m2n::name(status.code()),
               status.text().empty() ? "" : ": ", status.text().c_str());
}

// Says what went wrong before the others hear of it: a launcher may end this rank as soon as one of
// them leaves. Under MPI it ends the others itself: they may be waiting in MPI for this one.
void Rank::give_up(const Status& status) {
  complain(status);
  board_.fail();
  if (!baseline_) return;
  // MPICH's launcher drops what it has not read yet of a rank that aborts; so the one that has said
  // why gives it time, and the others leave the end to that one.
  ::usleep(status.code() == Code::cancelled ? 2'000'000 : 300'000);
  baseline_->abort();
}

int Rank::main(std::shared_ptr<Store> store) {
  Status status;
  try {
    status = start();
    if (status) status = setup_.options.op == Op::put ? run_transport(store) : run_rounds(store);
  } catch (const std::exception& error) {
    status = {Code::system, Scope::group, error.what()};
  }
  if (status) return 0;
  if (!agreed_) give_up(status);
  return failure;
}

int complain(const Status& status, int code) {
  std::fprintf(stderr, "%s\n", status.text().c_str());
  return code;
}

// Every rank finds the same mistake, rank 0 tells it. The others give it time: some launchers end
// all ranks when the first one leaves, and end these when rank 0 does.
int refuse_start(const Status& status, bool speaks) {
  if (speaks) return complain(status, usage);
  ::sleep(2);
  return usage;
}

// Rank 0 serves a store on this host; the others learn its port from the board.
Result<std::shared_ptr<Store>> meet_at_port(Board& board, std::uint32_t rank) {
  TcpStoreConfig config;
  config.server = rank == 0;
  if (rank == 0) {
    auto store = make_tcp_store(config);
    if (store) board.port().store(tcp_store_port(**store));
    if (!store) board.fail();
    return store;
  }
  while (board.port().load() == 0) {
    if (board.failed()) return Code::cancelled;
    ::usleep(500);
  }
  config.port = static_cast<std::uint16_t>(board.port().load());
  return make_tcp_store(config);
}

int run_alone(const Setup& setup) {
  auto board = Board::make(setup.ranks());
  if (!board) return complain(board.status(), failure);
  if (setup.options.transport == "inproc") {
    const auto store = make_inproc_store();
    return run_threads(setup.ranks(), *board, [&](std::uint32_t rank, Board mine) {
      return Rank{setup, std::move(mine), rank, ""}.main(store);
    });
  }
  return run_processes(setup.ranks(), *board, [&](std::uint32_t rank, Board mine) {
    auto store = meet_at_port(mine, rank);
    if (!store) {
      mine.fail();
      return store.code() == Code::cancelled ? failure : complain(store.status(), failure);
    }
    return Rank{setup, std::move(mine), rank, ""}.main(std::move(*store));
  });
}

int run_launched(const Setup& setup, const Launch& launch) {
  auto store = open_store(launch);
  if (!store) return complain(store.status(), failure);
  auto board = Board::meet(**store, launch.world_rank, launch.world_size);
  if (!board) return complain(board.status(), failure);
  return Rank{setup, std::move(*board), launch.world_rank, launch.source}.main(std::move(*store));
}

int start(int argc, const char* const* argv) {
  auto parsed = parse_options(argc, argv);
  const auto launch = detect_launch();
  const bool speaks = !launch || launch->world_rank == 0;
  if (!parsed) return refuse_start(parsed.status(), speaks);
  if (!parsed->text.empty()) {
    if (speaks) std::fputs(parsed->text.c_str(), stdout);
    return 0;
  }
  if (!launch && launch.code() != Code::unavailable) return complain(launch.status(), usage);
  std::optional<World> world;
  if (launch) world = World{launch->world_rank, launch->world_size, launch->source};
  auto setup = settle(parsed->options, world);
  if (!setup) return refuse_start(setup.status(), speaks);
  if (speaks) std::fputs(describe(*setup).c_str(), stdout);
  std::fflush(stdout);
  return launch ? run_launched(*setup, *launch) : run_alone(*setup);
}

}  // namespace
}  // namespace m2n::perf

int main(int argc, char** argv) {
  try {
    return m2n::perf::start(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "m2n_perf: %s\n", error.what());
    return 1;
  }
}
