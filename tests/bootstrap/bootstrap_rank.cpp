// One rank of a test job: finds its launch, meets the others in its store, and prints one line.
#include <cstdio>

#include "m2n/launch.hpp"

namespace {

int fail(const char* what, const m2n::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.text().c_str());
  return 1;
}

}  // namespace

int main() {
  m2n::Result<m2n::Launch> launch = m2n::detect_launch();
  if (!launch) return fail("detect_launch", launch.status());
  auto store = m2n::open_store(*launch);
  if (!store) return fail("open_store", store.status());
  const std::string mine = std::to_string(launch->world_rank);
  const m2n::Bytes value(3, static_cast<std::byte>(launch->world_rank));
  if (m2n::Status status = (*store)->set("rank/" + mine, value); !status)
    return fail("set", status);
  for (std::uint32_t rank = 0; rank < launch->world_size; ++rank) {
    auto theirs = (*store)->wait("rank/" + std::to_string(rank), std::chrono::seconds{20});
    if (!theirs) return fail("wait", theirs.status());
    if (*theirs != m2n::Bytes(3, static_cast<std::byte>(rank))) return 2;
  }
  // Two jobs in one store would count further.
  auto sum = (*store)->add("ranks", 1);
  if (!sum) return fail("add", sum.status());
  if (*sum > launch->world_size) return 3;
  // Rank 0 may serve the store: it stays until all have said that they are through.
  if (*sum == launch->world_size) {
    if (m2n::Status status = (*store)->set("through", {}); !status) return fail("set", status);
  }
  if (launch->world_rank == 0) {
    if (auto last = (*store)->wait("through", std::chrono::seconds{20}); !last) {
      return fail("wait", last.status());
    }
  }
  std::printf("rank %u of %u, local %u, from %s\n", launch->world_rank, launch->world_size,
              launch->local_rank, launch->source.c_str());
  return 0;
}
