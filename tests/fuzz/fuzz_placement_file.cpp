// Placement files of m2n_perf.
#include <string>

#include "perf/placement_file.hpp"
#include "tests/fuzz/edited.hpp"

namespace {

void check(const std::string& json) {
  const m2n::Result<m2n::Placement> parsed = m2n::perf::parse_placement(json, 3);
  if (!parsed) m2n::fuzz::expect(!parsed.status().text().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check({reinterpret_cast<const char*>(data), size});
  std::vector<std::byte> valid;
  for (const char c : std::string{R"({"experts": [0, 1, [[[0, 1], [2, 0]], [[1, 1]]]]})"}) {
    valid.push_back(static_cast<std::byte>(c));
  }
  const std::vector<std::byte> bytes = m2n::fuzz::edited(std::move(valid), {data, size});
  check({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return 0;
}
