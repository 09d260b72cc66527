// The entry points of every kernel variant. Each variant is a source file of its own, built with
// its own -m flags; those files must not call inline functions of shared headers, since the linker
// could keep their copy for everybody. Only row_kernels.cpp includes this besides them.
#pragma once

#include "transport/row_kernels.hpp"

namespace m2n::transport {

void copy_portable(void* to, const void* from, std::size_t bytes);
SumFunction sum_portable(DataType input, DataType output);

void copy_avx2(void* to, const void* from, std::size_t bytes);
void copy_streaming_avx2(void* to, const void* from, std::size_t bytes);
SumFunction sum_avx2(DataType input, DataType output);

void copy_avx512(void* to, const void* from, std::size_t bytes);
void copy_streaming_avx512(void* to, const void* from, std::size_t bytes);
SumFunction sum_avx512(DataType input, DataType output);

SumFunction sum_avx512_bf16(DataType input, DataType output);

}  // namespace m2n::transport
