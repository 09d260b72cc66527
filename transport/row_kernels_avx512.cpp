// Row kernels for AVX-512 without bf16 instructions. Built with the -m flags for them.
#include "transport/row_kernels_avx512.hpp"

#include "transport/row_kernels_variants.hpp"

namespace m2n::transport {

void copy_avx512(void* to, const void* from, std::size_t bytes) {
  move_row<Avx512, DataType::i8>(static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                                 bytes, false);
}

void copy_streaming_avx512(void* to, const void* from, std::size_t bytes) {
  move_row<Avx512, DataType::i8>(static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                                 bytes, true);
}

SumFunction sum_avx512(DataType input, DataType output) {
  return sum_of<Avx512Stores<Avx512>>(input, output);
}

}  // namespace m2n::transport
