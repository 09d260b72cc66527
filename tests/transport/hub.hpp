// Endpoints of shared memory in child processes, joined to each other through their parent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/transport/process.hpp"
#include "tests/transport/rig.hpp"

namespace m2n::testing {

Endpoint open_endpoint(std::uint32_t rank, const std::string& directory = "/dev/shm");

// A child's half: its endpoint, joined to all ranks.
std::optional<Endpoint> join_hub(int socket, std::uint32_t rank, std::uint32_t ranks,
                                 const std::string& directory = "/dev/shm");

// The parent's: hands every child's blobs to all of them.
bool serve_hub(std::vector<Process>& children);

}  // namespace m2n::testing
