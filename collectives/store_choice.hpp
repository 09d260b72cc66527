// How rows are written into one peer's window: with plain stores, or with streaming ones that go
// around the cache. Cores far apart hand a cached line over many times slower than memory does;
// cores that share a cache do it faster. Which of the two a pair is may change at any time, so the
// cost of a row is measured now and then. Pure state; the caller has the clock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m2n::collectives {

class StoreChoice {
 public:
  // Rows smaller than this tell nothing.
  static constexpr std::size_t least_sample_bytes = 2048;
  // Plain stores below this rate lose against streaming ones.
  static constexpr double slow_bytes_per_ns = 6.0;
  static constexpr std::uint32_t plain_interval = 4;        // rounds between two samples
  static constexpr std::uint32_t streaming_interval = 256;  // a plain row costs far cores much
  static constexpr std::uint32_t slow_samples = 2;          // one may be an interruption

  bool streaming() const noexcept { return streaming_; }

  // Once per round with rows: one of them is to be written with plain stores, fenced and timed.
  bool sample_due() noexcept {
    if (++rounds_ < (streaming_ ? streaming_interval : slow_ != 0 ? 1 : plain_interval))
      return false;
    rounds_ = 0;
    return true;
  }

  // What that row took. One good sample is enough to go back.
  void sample(std::size_t bytes, std::uint64_t ns) noexcept {
    const bool slow = static_cast<double>(bytes) < slow_bytes_per_ns * static_cast<double>(ns);
    slow_ = slow ? slow_ + 1 : 0;
    streaming_ = streaming_ ? slow : slow_ >= slow_samples;
  }

 private:
  bool streaming_ = false;
  std::uint32_t rounds_ = 0;  // since the last sample
  std::uint32_t slow_ = 0;    // samples in a row
};

// Rounds that no cache holds until they are read are better written to memory at once.
inline constexpr std::size_t streaming_round_bytes = std::size_t{16} << 20;

}  // namespace m2n::collectives
