// GB/s of the row kernels (bytes read plus bytes written), per set. Arguments: rows, MiB in play.
// Not a test: run it alone on a quiet machine.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "transport/row_kernels.hpp"

namespace {

using namespace m2n;
using transport::RowKernels;

constexpr std::size_t columns = 7168;

struct Arena {
  explicit Arena(std::size_t bytes) : memory(bytes + 64), size{bytes} {
    auto* first = memory.data();
    first += (64 - reinterpret_cast<std::uintptr_t>(first) % 64) % 64;
    base = first;
    // 1.0 or so in every type: the bytes 0x3c, 0x3c.
    std::memset(base, 0x3c, bytes);
  }
  std::vector<std::byte> memory;
  std::byte* base = nullptr;
  std::size_t size = 0;
};

struct Speed {
  DataType input;
  DataType output;
  bool streaming;
  float weight;
};

void sum(benchmark::State& state, const RowKernels& set, Speed speed) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  const std::size_t in_bytes = columns * size_of(speed.input);
  const std::size_t out_bytes = columns * size_of(speed.output);
  const std::size_t step = count * in_bytes + out_bytes;
  const std::size_t sums =
      std::max<std::size_t>(1, static_cast<std::size_t>(state.range(1)) * 1024 / step);
  const Arena arena{sums * step};
  std::vector<const void*> rows(count);
  const std::vector<float> weights(count, speed.weight);
  const auto function = set.sum(speed.input, speed.output);
  for (auto _ : state) {
    for (std::size_t i = 0; i < sums; ++i) {
      std::byte* at = arena.base + i * step;
      for (std::uint32_t j = 0; j < count; ++j) rows[j] = at + out_bytes + j * in_bytes;
      function({at, rows.data(), weights.data(), count, columns, nullptr, speed.streaming});
    }
    set.fence_streaming();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * sums * step));
}

void copy(benchmark::State& state, const RowKernels& set, bool streaming) {
  const std::size_t bytes = columns * 2;
  const std::size_t pairs =
      std::max<std::size_t>(1, static_cast<std::size_t>(state.range(1)) * 1024 / (2 * bytes));
  const Arena arena{pairs * 2 * bytes};
  const auto function = streaming ? set.copy_streaming : set.copy;
  for (auto _ : state) {
    for (std::size_t i = 0; i < pairs; ++i) {
      function(arena.base + 2 * i * bytes, arena.base + (2 * i + 1) * bytes, bytes);
    }
    set.fence_streaming();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * pairs * 2 * bytes));
}

// 1024 KiB lie in the second-level cache of most server cores, 262144 KiB in none.
void add_set(const RowKernels& set) {
  const std::string prefix{set.name};
  for (const bool streaming : {false, true}) {
    const std::string suffix = streaming ? "/streaming" : "";
    auto* copies =
        benchmark::RegisterBenchmark((prefix + "/copy" + suffix).c_str(), copy, set, streaming);
    auto* ones =
        benchmark::RegisterBenchmark((prefix + "/bf16_weight_1" + suffix).c_str(), sum, set,
                                     Speed{DataType::bf16, DataType::bf16, streaming, 1});
    auto* sums =
        benchmark::RegisterBenchmark((prefix + "/bf16" + suffix).c_str(), sum, set,
                                     Speed{DataType::bf16, DataType::bf16, streaming, .5f});
    for (auto* one : {copies, ones, sums}) one->ArgNames({"rows", "KiB"})->Args({1, 262144});
    if (streaming) continue;
    for (auto* one : {copies, ones, sums}) one->Args({1, 1024});
    sums->Args({2, 1024})->Args({4, 1024})->Args({8, 1024});
  }
  for (const auto& [input, output] :
       {std::pair{DataType::f16, DataType::f16}, std::pair{DataType::f32, DataType::f32},
        std::pair{DataType::f32, DataType::bf16}, std::pair{DataType::bf16, DataType::f32}}) {
    const std::string label = prefix + "/" + name(input) + "_to_" + name(output);
    benchmark::RegisterBenchmark(label.c_str(), sum, set, Speed{input, output, false, .5f})
        ->ArgNames({"rows", "KiB"})
        ->Args({2, 1024});
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const RowKernels& set : transport::all_row_kernels()) add_set(set);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
