// exchange = automatic: push every row, or copy it once for all? What measured rows decide.
#include "collectives/exchange_choice.hpp"

#include <gtest/gtest.h>

namespace m2n::collectives {
namespace {

// Of `operations` operations with 8 tokens, how many were copied once.
std::uint32_t copied(ExchangeChoice& choice, std::uint32_t operations, std::uint64_t rows,
                     std::uint64_t push_ns, std::uint64_t once_ns) {
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < operations; ++i) {
    if (choice.copy_once(8, rows)) {
      ++count;
      choice.copied(8, 8 * once_ns);
    } else {
      choice.pushed(rows, rows * push_ns);
    }
  }
  return count;
}

TEST(ExchangeChoice, OneReaderPerRowIsPushedTo) {
  ExchangeChoice choice;
  EXPECT_EQ(copied(choice, 5000, 8, 500, 10), 0u);
  EXPECT_EQ(choice.once_row_ns(), 0) << "not even tried";
}

TEST(ExchangeChoice, SeveralReadersShareACopyThatCostsNoMore) {
  ExchangeChoice choice;
  EXPECT_GE(copied(choice, 20, 16, 500, 500), 13u) << "known after a few operations";
  copied(choice, 600, 16, 500, 500);
  EXPECT_GE(copied(choice, 1000, 16, 500, 500), 985u);
}

TEST(ExchangeChoice, ADearCopyIsTriedNowAndThen) {
  ExchangeChoice choice;
  copied(choice, 600, 16, 500, 2000);
  const std::uint32_t tried = copied(choice, 2560, 16, 500, 2000);
  EXPECT_GE(tried, 5u);
  EXPECT_LE(tried, 33u);
}

TEST(ExchangeChoice, FollowsWhatChanges) {
  ExchangeChoice choice;
  copied(choice, 600, 16, 500, 2000);
  copied(choice, 4000, 16, 500, 300);
  EXPECT_GE(copied(choice, 1000, 16, 500, 300), 985u);
  copied(choice, 4000, 16, 200, 3000);
  EXPECT_LE(copied(choice, 1000, 16, 200, 3000), 15u);
}

TEST(ExchangeChoice, ManyReadersPayForADearerCopy) {
  ExchangeChoice choice;
  copied(choice, 600, 64, 500, 2000);
  EXPECT_GE(copied(choice, 1000, 64, 500, 2000), 985u);
}

}  // namespace
}  // namespace m2n::collectives
