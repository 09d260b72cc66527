// Loads the MPI module that fits the launcher and drives it.
#include "perf/baseline_engine.hpp"

#include <dlfcn.h>

#include <filesystem>

#include "perf/kernels.hpp"

namespace m2n::perf {
namespace {

Status bad(const std::string& what) {
  return {Code::unavailable, Scope::group, "m2n_perf: --baseline mpi: " + what};
}

class BaselineEngine final : public Engine {
 public:
  BaselineEngine(const Seat& seat, std::string name) : seat_{seat}, name_{std::move(name)} {}

  void prepare(const BaselineModule& module, std::uint32_t variant);
  std::string name() const override { return name_; }
  Status iterate(std::uint64_t first, bool check, std::span<Record> records) override;

 private:
  static void inspect_row(void* context, std::uint32_t attention, std::uint32_t token,
                          const std::byte* row);

  Seat seat_;
  std::string name_;
  std::vector<std::uint32_t> home_, local_;
  std::unique_ptr<ByteOutputs> bytes_;
  std::unique_ptr<BaselineRounds> rounds_;
  Buffer x_, out_;
  std::uint64_t operation_ = 0;
};

void BaselineEngine::prepare(const BaselineModule& module, std::uint32_t variant) {
  const Setup& setup = *seat_.setup;
  BaselineShape shape;
  shape.rank = seat_.rank;
  shape.attention_ranks = setup.attention_ranks;
  shape.expert_ranks = setup.expert_ranks;
  shape.tokens = seat_.tokens;
  shape.top_k = setup.top_k;
  shape.hidden = setup.hidden;
  shape.row_bytes = setup.row_bytes();
  shape.wire_row_bytes = setup.wire_row_bytes();
  shape.wire = setup.wire;
  shape.grouped = setup.options.layout != Layout::rows;
  shape.oversubscribed = seat_.oversubscribed;
  for (std::uint32_t e = 0; e < setup.experts; ++e) {
    const Replica place = setup.placement.replicas(e, 0)[0];
    home_.push_back(place.rank);
    local_.push_back(place.local_expert);
    shape.most_local = std::max(shape.most_local, place.local_expert + 1);
  }
  shape.home = home_.data();
  shape.local = local_.data();
  bytes_ = std::make_unique<ByteOutputs>(setup);
  shape.byte_outputs = setup.byte_payload() ? bytes_->base() : nullptr;
  shape.kernels = &kernels();
  rounds_.reset(module.make(shape, variant));
  if (!seat_.attention()) return;
  x_ = Buffer{seat_.tokens * setup.row_bytes()};
  out_ = Buffer{seat_.tokens * setup.wire_row_bytes()};
}

void BaselineEngine::inspect_row(void* context, std::uint32_t attention, std::uint32_t token,
                                 const std::byte* row) {
  auto& engine = *static_cast<BaselineEngine*>(context);
  const RowName name{attention, token, engine.operation_};
  if (!same_row(*engine.seat_.setup, name, row)) ++engine.wrong_;
}

Status BaselineEngine::iterate(std::uint64_t first, bool check, std::span<Record> records) {
  for (Record& record : records) {
    operation_ = first++;
    if (!seat_.attention()) {
      const Inspector inspector{inspect_row, this};
      rounds_->expert(check ? &inspector : nullptr, record);
      continue;
    }
    const std::uint64_t begin = now_ns();
    seat_.work->produce(x_.data(), seat_.setup->row_bytes(), operation_);
    record.produce = now_ns() - begin;
    const Choices& choices = seat_.work->choices(operation_);
    rounds_->attention(x_.data(), choices.ids.data(), choices.weights.data(), out_.data(), record);
    if (check) wrong_ += seat_.work->wrong_rows(out_.data(), operation_);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<BaselineLibrary>> BaselineLibrary::load(const std::string& launcher) {
  const std::string file =
      std::string{"m2n_perf_mpi_"} + (launcher == "open-mpi" ? "openmpi" : "mpich") + ".so";
  std::error_code ignored;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::string tried;
  for (const auto& path : {here / M2N_PERF_MODULES / file, here / ".." / "lib" / file}) {
    if (!std::filesystem::exists(path, ignored)) {
      tried += " " + path.string();
      continue;
    }
    // Open MPI's own components look for its symbols among the global ones.
    void* object = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (object == nullptr) return bad(::dlerror());
    const auto entry = reinterpret_cast<BaselineEntry>(::dlsym(object, baseline_entry_name));
    if (entry == nullptr) return bad(path.string() + " has no " + baseline_entry_name);
    return std::unique_ptr<BaselineLibrary>{new BaselineLibrary{entry()}};
  }
  return bad("no module for " + launcher + "; looked for" + tried +
             " (it is built when that MPI's compiler wrapper is found)");
}

Status BaselineLibrary::start(std::uint32_t rank, std::uint32_t ranks) {
  started_ = true;
  if (module_->start(rank, ranks)) return {};
  return bad(std::string{module_->library} + " does not agree that this is rank " +
             std::to_string(rank) + " of " + std::to_string(ranks));
}

void BaselineLibrary::abort() const {
  if (started_) module_->abort();
}

BaselineLibrary::~BaselineLibrary() {
  if (started_) module_->finish();
}

std::unique_ptr<Engine> make_baseline_engine(const Seat& seat, const BaselineModule& module,
                                             std::uint32_t variant) {
  auto engine =
      std::make_unique<BaselineEngine>(seat, std::string{"mpi "} + module.variants[variant].name);
  engine->prepare(module, variant);
  return engine;
}

}  // namespace m2n::perf
