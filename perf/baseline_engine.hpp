// Rounds through a baseline module (perf/baseline/). One per rank and variant.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "m2n/status.hpp"
#include "perf/baseline/baseline.hpp"
#include "perf/engine.hpp"

namespace m2n::perf {

// The loaded module. Lives until the process ends: MPI can be started only once.
class BaselineLibrary {
 public:
  // `launcher` is World::source. The module lies in ../lib of a build, in lib/m2n once installed.
  static Result<std::unique_ptr<BaselineLibrary>> load(const std::string& launcher);
  // Ends MPI, which all ranks must do together.
  ~BaselineLibrary();
  BaselineLibrary(const BaselineLibrary&) = delete;
  BaselineLibrary& operator=(const BaselineLibrary&) = delete;

  // All ranks together.
  Status start(std::uint32_t rank, std::uint32_t ranks);
  // Does not return if MPI has been started: it ends all ranks, whatever they are doing.
  void abort() const;
  const BaselineModule& module() const noexcept { return *module_; }

 private:
  explicit BaselineLibrary(const BaselineModule* module) : module_{module} {}
  const BaselineModule* module_;
  bool started_ = false;
};

std::unique_ptr<Engine> make_baseline_engine(const Seat& seat, const BaselineModule& module,
                                             std::uint32_t variant);

}  // namespace m2n::perf
