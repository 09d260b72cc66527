// What the command line of m2n_perf asks for. parse_options knows the words, settle (setup.hpp)
// knows which of them fit together. Used once, by the main thread, before any rank starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "m2n/status.hpp"
#include "m2n/types.hpp"

namespace m2n::perf {

enum class Op : std::uint8_t { dispatch, combine, roundtrip, put };
enum class Input : std::uint8_t { own, arena };
// Expert ranks begin with whole batches, or with rows as they come.
enum class Receive : std::uint8_t { automatic, whole, early };
enum class Baseline : std::uint8_t { none, mpi };

const char* name(Op op) noexcept;

// M attention ranks x N expert ranks.
struct Ranks {
  std::uint32_t attention = 0;
  std::uint32_t expert = 0;
};

// Values as given; empty optionals are decided later, from the model, the routing file or the
// launcher.
struct Options {
  std::optional<Ranks> ranks;
  std::string transport = "auto";
  ExchangeKind exchange = ExchangeKind::automatic;
  std::string model = "deepseek-v3";
  std::optional<std::uint32_t> experts;
  std::optional<std::uint32_t> top_k;
  std::optional<std::uint32_t> hidden;
  DataType dtype = DataType::bf16;
  std::vector<std::uint32_t> tokens;
  std::string routing = "uniform";
  std::string placement = "block";
  Layout layout = Layout::rows;
  Op op = Op::roundtrip;
  std::uint32_t depth = 2;
  std::uint32_t micro_batches = 1;
  std::uint32_t max_tokens = 0;  // of one operation; 0 = chosen by size
  Combine combine = Combine::reduced;
  Input input = Input::own;
  Receive receive = Receive::automatic;
  Wait wait = Wait::automatic;
  std::uint32_t iterations = 0;  // timed ones per size and engine; 0 = as many as fit half a second
  std::uint32_t warmup = 0;      // 0 = chosen by size
  bool bind = true;
  bool check = true;
  Baseline baseline = Baseline::none;
  std::string json;
  bool corrupt = false;  // for tests: spoils one row, so that the data check must fail
};

struct Parsed {
  Options options;
  std::string text;  // not empty: print this and stop, successfully (--help, --version)
};

// `invalid` names the option, its value and what is allowed.
Result<Parsed> parse_options(int argc, const char* const* argv);

// "2x3"; "1:1024:x4" -> 1, 4, 16, ... up to 1024 (x2 when no factor is given); "1,8,100" -> those,
// and each may be a range.
Result<Ranks> parse_ranks(const std::string& text);
Result<std::vector<std::uint32_t>> parse_tokens(const std::string& text);

struct Model {
  const char* name;
  std::uint32_t experts;
  std::uint32_t top_k;
  std::uint32_t hidden;
};
// Null for an unknown name.
const Model* find_model(const std::string& name) noexcept;

}  // namespace m2n::perf
