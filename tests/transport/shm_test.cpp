// What only shared memory can get wrong, within one process: names, modes, descriptors, and files
// that are not what a blob says.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/transport/process.hpp"
#include "tests/transport/rig.hpp"
#include "transport/shm_blob.hpp"

namespace m2n::testing {
namespace {

using namespace m2n::transport;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::unique_ptr<Transport> open_rank(std::uint32_t rank, const ShmSettings& settings = {}) {
  auto opened = open_shm({"job", rank, 0}, settings);
  EXPECT_TRUE(opened) << opened.status().text();
  return opened ? std::move(*opened) : nullptr;
}

ShmSettings impatient() {
  ShmSettings settings;
  settings.patience = 30ms;
  return settings;
}

// Rank 0 owns a memory that rank 1 may import.
struct Two {
  explicit Two(const ShmSettings& settings = impatient())
      : owner{open_rank(0)}, other{open_rank(1, settings)} {
    memory = *owner->add_memory({nullptr, 10'000});
    blob = *parse_shm_blob(*owner->export_memory(memory));
    peer = *other->connect(owner->address());
  }
  Result<RemoteId> import() { return other->import_memory(peer, write_shm_blob(blob)); }
  std::unique_ptr<Transport> owner;
  std::unique_ptr<Transport> other;
  MemoryId memory{};
  ShmBlob blob;
  PeerId peer{};
};

TEST(Shm, FilesHaveNoNameAndAreForTheirUserAlone) {
  const ScratchDirectory directory;
  ShmSettings settings;
  settings.directory = directory.path();
  const mode_t before = umask(0777);
  auto transport = open_rank(0, settings);
  const auto memory = transport->add_memory({nullptr, 1u << 20});
  umask(before);
  ASSERT_TRUE(memory) << memory.status().text();
  EXPECT_EQ(directory.entries(), 0u);
  for (const Blob& bytes : {transport->address(), *transport->export_memory(*memory)}) {
    const auto blob = parse_shm_blob(bytes);
    ASSERT_TRUE(blob);
    struct stat found {};
    ASSERT_EQ(fstat(blob->descriptor, &found), 0);
    EXPECT_EQ(found.st_nlink, 0u);
    EXPECT_EQ(found.st_mode & 07777, 0600u);
    EXPECT_EQ(static_cast<std::uint64_t>(found.st_blocks) * 512, blob->file_bytes) << "reserved";
    EXPECT_NE(fcntl(blob->descriptor, F_GETFD) & FD_CLOEXEC, 0);
    const std::string name = "/proc/self/fd/" + std::to_string(blob->descriptor);
    EXPECT_NE(linkat(AT_FDCWD, name.c_str(), AT_FDCWD, (directory.path() + "/x").c_str(),
                     AT_SYMLINK_FOLLOW),
              0);
  }
}

TEST(Shm, DescriptorsAreClosed) {
  { const Two warm; }
  const std::size_t before = open_descriptors();
  {
    Two two;
    EXPECT_EQ(open_descriptors(), before + 3);  // two doorbells, one memory
    ASSERT_TRUE(two.import());
    EXPECT_EQ(open_descriptors(), before + 3);
    two.owner->seal_memory(two.memory);
    EXPECT_EQ(open_descriptors(), before + 2);
    EXPECT_EQ(two.owner->export_memory(two.memory).code(), Code::invalid);
  }
  EXPECT_EQ(open_descriptors(), before);
  for (int i = 0; i < 1000; ++i) {
    auto transport = open_rank(0);
    const auto memory = transport->add_memory({nullptr, 8192});
    ASSERT_TRUE(memory) << memory.status().text();
    const auto peer = transport->connect(transport->address());
    ASSERT_TRUE(peer) << peer.status().text();
    ASSERT_TRUE(transport->import_memory(*peer, *transport->export_memory(*memory)));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Shm, TriesAgainWhileTheFileIsNotThere) {
  int calls = 0;
  ShmSettings settings;
  settings.open_fault = [&calls] {
    constexpr int errors[] = {0, ENOENT, EAGAIN, ECONNREFUSED};
    return calls < 4 ? errors[calls++] : (++calls, 0);  // the first is connect's
  };
  Two two{settings};
  EXPECT_TRUE(two.import());
  EXPECT_EQ(calls, 5);
}

TEST(Shm, GivesUpNamingTheRankAndThePath) {
  for (const int error : {ENOENT, EACCES}) {
    bool connected = false;
    int calls = 0;
    ShmSettings settings = impatient();
    settings.open_fault = [&] {
      ++calls;
      return connected ? error : 0;
    };
    Two two{settings};
    connected = true;
    calls = 0;
    const auto start = Clock::now();
    const auto imported = two.import();
    EXPECT_EQ(imported.code(), Code::peer_failed);
    EXPECT_EQ(imported.status().peer(), 0);
    for (const std::string& part : {std::string{"rank 0"}, std::string{"/proc/"},
                                    std::string{std::strerror(error)}, std::string{"rank 1"}}) {
      EXPECT_NE(imported.status().text().find(part), std::string::npos) << imported.status().text();
    }
    // Only what may pass is worth waiting for.
    EXPECT_EQ(error == ENOENT, calls > 1);
    EXPECT_TRUE(error != ENOENT || Clock::now() - start >= 30ms);
  }
}

TEST(Shm, AFileThatIsAnotherOneIsRefused) {
  Two two;
  const ShmBlob good = two.blob;
  const auto second =
      *parse_shm_blob(*two.owner->export_memory(*two.owner->add_memory({nullptr, 10'000})));
  const auto refused = [&](const char* what) {
    const auto imported = two.import();
    EXPECT_FALSE(imported) << what;
    EXPECT_FALSE(imported.status().text().empty());
    two.blob = good;
  };
  two.blob.descriptor = second.descriptor;
  refused("another memory's descriptor");
  two.blob.inode = second.inode;
  two.blob.descriptor = second.descriptor;
  refused("another memory of the right kind and size");
  two.blob.inode += 1;
  refused("inode");
  two.blob.device += 1;
  refused("device");
  two.blob.nonce[1] ^= 1;
  refused("nonce");
  two.blob.bytes = 5'000'000;
  two.blob.file_bytes = shm_file_bytes(two.blob.bytes);
  refused("a larger size than the file's");
  two.blob.bytes -= 1;
  refused("a size that only the header tells apart");
  two.blob.job = "jab";
  refused("job");
  two.blob.world_rank = 7;
  refused("world rank");
  two.blob.pid = 1;
  refused("pid");
  two.blob.descriptor = 0;
  refused("standard input");
  two.blob.kind = ShmKind::doorbell;
  refused("kind");
  EXPECT_TRUE(two.import());
}

TEST(Shm, AHeaderThatIsNotWrittenYetIsWaitedFor) {
  ShmSettings patient;
  patient.patience = 20s;
  Two two{patient};
  auto* magic = reinterpret_cast<std::uint64_t*>(two.owner->local(two.memory) - shm_page_bytes);
  const std::uint64_t value = load_acquire(magic);
  store_release(magic, 0);
  std::thread late{[&] {
    std::this_thread::sleep_for(20ms);
    store_release(magic, value);
  }};
  EXPECT_TRUE(two.import());
  late.join();
  store_release(magic, 0);
  Two fresh;
  auto* never = reinterpret_cast<std::uint64_t*>(fresh.owner->local(fresh.memory) - shm_page_bytes);
  store_release(never, 0);
  const auto refused = fresh.import();
  EXPECT_EQ(refused.code(), Code::peer_failed);
  EXPECT_NE(refused.status().text().find("header"), std::string::npos) << refused.status().text();
}

TEST(Shm, BlobsSurviveTheirTrip) {
  ShmBlob blob;
  blob.kind = ShmKind::memory;
  blob.pid = 12;
  blob.descriptor = 3;
  blob.bytes = 5000;
  blob.file_bytes = shm_file_bytes(5000);
  blob.huge_pages = true;
  blob.nonce = {1, 2};
  blob.job = std::string(ShmBlob::max_job_bytes, 'j');
  blob.signals = {{0, 64, 3}, {4984, 8, 2}};
  const Blob bytes = write_shm_blob(blob);
  const auto back = parse_shm_blob(bytes);
  ASSERT_TRUE(back) << back.status().text();
  EXPECT_EQ(write_shm_blob(*back), bytes);
  blob.signals[1].count = 3;  // beyond the end
  EXPECT_EQ(parse_shm_blob(write_shm_blob(blob)).code(), Code::invalid);
  blob.signals.clear();
  blob.job += 'j';
  EXPECT_EQ(parse_shm_blob(write_shm_blob(blob)).code(), Code::invalid);
  // No single changed byte may do more than be refused or give another valid blob.
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const unsigned flip : {0x01u, 0x80u, 0xffu}) {
      Blob changed = bytes;
      changed[i] ^= static_cast<std::byte>(flip);
      const auto parsed = parse_shm_blob(changed);
      ASSERT_TRUE(!parsed || write_shm_blob(*parsed) == changed) << i;
    }
  }
}

TEST(Shm, TheDirectoryComesFromTheEnvironment) {
  const char* old = std::getenv("M2N_SHM_DIR");
  const std::string before = old != nullptr ? old : "";
  setenv("M2N_SHM_DIR", "/nonexistent-directory", 1);
  const auto refused = open_transport("shm", {"job", 2, 0});
  if (old != nullptr) {
    setenv("M2N_SHM_DIR", before.c_str(), 1);
  } else {
    unsetenv("M2N_SHM_DIR");
  }
  EXPECT_EQ(refused.code(), Code::system);
  for (const char* part : {"/nonexistent-directory", "M2N_SHM_DIR", "rank 2"}) {
    EXPECT_NE(refused.status().text().find(part), std::string::npos) << refused.status().text();
  }
  EXPECT_TRUE(open_transport("shm", {"job", 2, 0}));
}

}  // namespace
}  // namespace m2n::testing
