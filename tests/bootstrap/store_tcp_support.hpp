// Shared by the tests of the TCP store.
#pragma once

#include <gtest/gtest.h>

#include "tests/bootstrap/support.hpp"

namespace m2n::bootstrap {

inline Result<std::shared_ptr<Store>> open_server(std::uint16_t port = 0,
                                                  const std::string& key = "") {
  TcpStoreConfig config;
  config.server = true;
  config.port = port;
  config.job_key = key;
  return make_tcp_store(config);
}

inline Result<std::shared_ptr<Store>> open_client(std::uint16_t port, const std::string& key = "",
                                                  std::chrono::milliseconds start_timeout = 20s) {
  TcpStoreConfig config;
  config.port = port;
  config.job_key = key;
  config.start_timeout = start_timeout;
  return make_tcp_store(config);
}

class TcpStoreTest : public ::testing::Test {
 protected:
  const Variables variables_{{}};
};

}  // namespace m2n::bootstrap
