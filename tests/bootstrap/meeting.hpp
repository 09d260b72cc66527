// What tests of Group::create and open have in common.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/ranks.hpp"

namespace m2n::testing {

inline RankSet bare(std::uint32_t attention, std::uint32_t experts) {
  RankSet set;
  set.attention = attention;
  set.experts = experts;
  set.bare = true;
  return set;
}

inline ChannelConfig small_channel(const char* name = "main") {
  ChannelConfig config;
  config.name = name;
  config.experts = 2;
  config.hidden = 16;
  config.max_tokens = 4;
  return config;
}

inline void expect_says(const Status& status, Code code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status.text();
  for (const std::string& part : parts) {
    EXPECT_NE(status.text().find(part), std::string::npos)
        << "no " << part << ": " << status.text();
  }
}

}  // namespace m2n::testing
