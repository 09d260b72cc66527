// An independent reference of dispatch and combine: scalar, exact, short enough to be checked by
// eye. Shares no code with the library but its public types. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "m2n/m2n.hpp"

namespace m2n::reference {

// --- numbers, by integer arithmetic
// ---------------------------------------------------------------
float to_float(const std::byte* element, DataType type);          // bf16, f16, f32
void from_float(float value, DataType type, std::byte* element);  // nearest even, denormals
bool equal_numbers(const std::byte* a, const std::byte* b,
                   DataType type);  // bits; any NaN = any NaN

// --- the job
// -------------------------------------------------------------------------------------- What one
// attention rank hands to one dispatch, in the plainest form.
struct Inputs {
  std::uint32_t tokens = 0;
  std::vector<std::byte> x;                   // [tokens, row bytes]
  std::vector<std::vector<std::byte>> extra;  // per array [tokens, its bytes]
  std::vector<std::int64_t> ids;              // [tokens, top_k]
  std::vector<float> weights;                 // [tokens, top_k]
  std::vector<std::byte> addend;              // [tokens, hidden] of the output type, or empty
  std::uint32_t layer = 0;
  std::uint32_t micro_batch = 0;
};

struct Job {
  ChannelConfig config;  // placement filled in
  std::uint32_t attention_rank = 0;
  std::uint64_t operation = 0;
};

// y = f(expert, part) of a payload row, [hidden] of the wire type.
using Expert =
    std::function<void(const std::byte* x, std::uint32_t e, std::uint32_t part, std::byte* y)>;

// One (token, k, part) and the replica that gets it.
struct Route {
  std::uint32_t token = 0;
  std::uint32_t expert = 0;
  std::uint32_t part = 0;
  std::uint32_t rank = 0;
  std::uint32_t local_expert = 0;
  float weight = 0;
  bool repeated = false;
};

// In (token, k, part) order.
std::vector<Route> route(const Job& job, const Inputs& inputs);

// [tokens, hidden] of the output type; rows of other shards are left empty (0 bytes everywhere).
std::vector<std::byte> combine(const Job& job, const Inputs& inputs, const Expert& expert);

}  // namespace m2n::reference
