// A user's first program: the loaded library is the one of the headers, and one value goes through
// a store.
#include <array>
#include <cstddef>
#include <cstdio>
#include <string>

#include "m2n/m2n.hpp"

int main() {
  const std::string wanted = std::to_string(M2N_VERSION_MAJOR) + "." +
                             std::to_string(M2N_VERSION_MINOR) + "." +
                             std::to_string(M2N_VERSION_PATCH);
  if (m2n::version() != wanted) {
    std::fprintf(stderr, "library %s, headers %s\n", m2n::version(), wanted.c_str());
    return 1;
  }
  const auto store = m2n::make_inproc_store();
  const std::array<std::byte, 2> value{std::byte{4}, std::byte{2}};
  if (const m2n::Status status = store->set("answer", value); !status) {
    std::fprintf(stderr, "set: %s\n", m2n::name(status.code()));
    return 1;
  }
  const m2n::Result<m2n::Bytes> got = store->get("answer");
  if (!got || got->size() != value.size() || (*got)[1] != value[1]) {
    std::fprintf(stderr, "get: %s\n", m2n::name(got.code()));
    return 1;
  }
  std::printf("m2n %s\n", m2n::version());
  return 0;
}
