// Whether a caller's rows can be read or written. The check is cheap; the text is made only when it
// fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "m2n/status.hpp"
#include "m2n/types.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

constexpr bool rows_fit(const ConstRows& rows, std::size_t row_bytes) noexcept {
  return rows.base != nullptr && rows.column_stride == 1 &&
         (rows.row_stride_bytes == 0 || rows.row_stride_bytes >= row_bytes);
}

// What an error text needs to know about an argument.
struct RowArgument {
  std::string_view function;
  std::string argument;
  std::string_view setting;
  std::int32_t rank = -1;
};

// Why rows_fit() says no.
inline Status explain_rows(const ConstRows& rows, std::size_t row_bytes, const RowArgument& about) {
  const std::string_view setting = about.setting;
  if (rows.base == nullptr) {
    return transport::refuse({about.function, about.argument + ".base", "nullptr",
                              "memory, unless there is nothing in it", about.rank, setting});
  }
  if (rows.column_stride != 1) {
    return transport::refuse({about.function, about.argument + ".column_stride",
                              std::to_string(rows.column_stride), "1 (adjacent elements)",
                              about.rank, setting});
  }
  return transport::refuse({about.function, about.argument + ".row_stride_bytes",
                            std::to_string(rows.row_stride_bytes),
                            "0 or at least " + std::to_string(row_bytes), about.rank, setting});
}

}  // namespace m2n::collectives
