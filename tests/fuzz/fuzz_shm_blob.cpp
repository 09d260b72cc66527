// What another process says about its shared files.
#include <algorithm>

#include "tests/fuzz/edited.hpp"
#include "transport/shm_blob.hpp"

namespace {

using namespace m2n::transport;

void check(std::span<const std::byte> bytes) {
  const m2n::Result<ShmBlob> parsed = parse_shm_blob(bytes);
  if (!parsed) {
    m2n::fuzz::expect(parsed.code() == m2n::Code::invalid && !parsed.status().text().empty());
    return;
  }
  m2n::fuzz::expect(parsed->signals.size() <= ShmBlob::max_tables);
  m2n::fuzz::expect(parsed->job.size() <= ShmBlob::max_job_bytes);
  m2n::fuzz::expect(std::ranges::equal(write_shm_blob(*parsed), bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check(std::as_bytes(std::span{data, size}));
  ShmBlob blob;
  blob.kind = size % 2 == 0 ? ShmKind::memory : ShmKind::doorbell;
  blob.pid = 4711;
  blob.descriptor = 5;
  blob.file_bytes = 12288;
  blob.bytes = 8192;
  blob.job = "job";
  if (blob.kind == ShmKind::memory) blob.signals.resize(2);
  check(m2n::fuzz::edited(write_shm_blob(blob), {data, size}));
  return 0;
}
