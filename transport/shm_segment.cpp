#include "transport/shm_segment.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "m2n/version.hpp"
#include "transport/text.hpp"

namespace m2n::transport {
namespace {

constexpr std::uint64_t header_magic = 0x6765'736d'6e32'6d31;

// The first page of every file. `magic` is written last.
struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t kind;
  std::uint32_t world_rank;
  std::uint32_t worker;
  std::uint64_t bytes;
  std::uint64_t nonce[2];
  std::uint32_t job_bytes;
  char job[ShmBlob::max_job_bytes];
};
static_assert(sizeof(Header) <= shm_page_bytes);

class Descriptor {
 public:
  explicit Descriptor(int value) noexcept : value_{value} {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  int get() const noexcept { return value_; }
  int release() noexcept { return std::exchange(value_, -1); }

 private:
  int value_;
};

std::string error_text(int error) {
  return std::generic_category().message(error);
}

// What the user can do about a directory that does not hold the file.
Status no_room(const ShmBlob& what, const ShmSettings& settings, const std::string& step,
               int error) {
  struct statvfs room {};
  std::string free_bytes = "unknown";
  if (statvfs(settings.directory.c_str(), &room) == 0) {
    free_bytes = std::to_string(static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize);
  }
  const std::string call = what.kind == ShmKind::memory ? "add_memory: " : "open_transport: ";
  std::string text = call + step + " in " + settings.directory + " failed: " + error_text(error) +
                     " (rank " + std::to_string(what.world_rank) + "); needed " +
                     std::to_string(what.file_bytes) + " bytes, free " + free_bytes + " bytes; ";
  text +=
      "remedies: set M2N_SHM_DIR to a writable directory with room (or enlarge this one), or use a "
      "smaller ChannelConfig::max_tokens or depth, or another transport";
  return {Code::system, Scope::operation, std::move(text)};
}

// A new file without a name, or -1 and errno.
int open_unnamed(const std::string& directory) {
  // O_EXCL: nobody can give it a name later.
  int fd = open(directory.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  const bool unsupported = fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL);
  if (unsupported && directory == "/dev/shm") fd = memfd_create("m2n", MFD_CLOEXEC);
  // Neither the umask nor memfd's 0777 decide who may open it.
  if (fd >= 0 && fchmod(fd, 0600) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

// What the machine could hand out now, or everything where that is not told.
std::uint64_t available_memory() {
  std::ifstream meminfo{"/proc/meminfo"};
  std::string word;
  while (meminfo >> word) {
    std::uint64_t kib = 0;
    if (word == "MemAvailable:" && meminfo >> kib) return kib * 1024;
  }
  return ~std::uint64_t{0};
}

// Asking piece by piece would fill the directory, or the machine, before it is refused.
int look_for_room(int fd, std::uint64_t bytes) {
  struct statvfs room {};
  if (fstatvfs(fd, &room) == 0 && room.f_blocks != 0 &&  // 0 = no limit of its own
      bytes > static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize) {
    return ENOSPC;
  }
  struct statfs kind {};
  const bool in_memory = fstatfs(fd, &kind) == 0 && kind.f_type == TMPFS_MAGIC;
  return in_memory && bytes > available_memory() ? ENOMEM : 0;
}

// Real pages for the whole file. 0 or an errno; never a signal.
int reserve(int fd, std::uint64_t bytes) {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    return EFBIG;  // asking the kernel would send SIGXFSZ
  }
  if (const int error = look_for_room(fd, bytes); error != 0) return error;
  // Pieces, so that a timer signal does not undo all of a large file each time.
  constexpr std::uint64_t piece = 16u << 20;
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t size = std::min(piece, bytes - at);
    const int error = posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(size));
    if (error == EINTR) continue;
    if (error != 0) return error;
    at += size;
  }
  return 0;
}

int fill_random(std::array<std::uint64_t, 2>& nonce) {
  std::size_t have = 0;
  while (have < sizeof nonce) {
    const ssize_t got =
        getrandom(reinterpret_cast<char*>(nonce.data()) + have, sizeof nonce - have, 0);
    if (got < 0 && errno != EINTR) return errno;
    if (got > 0) have += static_cast<std::size_t>(got);
  }
  return 0;
}

void write_header(std::byte* page, const ShmBlob& what) {
  auto* header = ::new (page) Header{};
  header->version = wire_version;
  header->kind = static_cast<std::uint32_t>(what.kind);
  header->world_rank = what.world_rank;
  header->worker = what.worker;
  header->bytes = what.bytes;
  std::copy(what.nonce.begin(), what.nonce.end(), header->nonce);
  header->job_bytes = static_cast<std::uint32_t>(what.job.size());
  std::memcpy(header->job, what.job.data(), what.job.size());
  store_release(&header->magic, header_magic);
}

// Empty, or what differs.
std::string header_fault(const std::byte* page, const ShmBlob& what) {
  const auto* header = reinterpret_cast<const Header*>(page);
  if (load_acquire(&header->magic) != header_magic) return "magic";
  if (header->version != wire_version) {
    return "wire version " + std::to_string(header->version);
  }
  if (header->kind != static_cast<std::uint32_t>(what.kind)) return "kind";
  if (header->nonce[0] != what.nonce[0] || header->nonce[1] != what.nonce[1]) return "nonce";
  if (header->world_rank != what.world_rank || header->worker != what.worker) {
    return "world rank " + std::to_string(header->world_rank);
  }
  if (header->bytes != what.bytes) return "size";
  if (header->job_bytes != what.job.size() ||
      std::memcmp(header->job, what.job.data(), what.job.size()) != 0) {
    return "job";
  }
  return {};
}

bool same_file(const struct stat& found, const ShmBlob& what) {
  return S_ISREG(found.st_mode) && found.st_dev == what.device && found.st_ino == what.inode &&
         static_cast<std::uint64_t>(found.st_size) == what.file_bytes;
}

struct Opened {
  int descriptor = -1;
  int error = 0;
  bool other_file = false;
};

Opened open_once(const std::string& path, const ShmBlob& what, const ShmSettings& settings) {
  Opened opened;
  if (settings.open_fault) {
    opened.error = settings.open_fault();
    if (opened.error != 0) return opened;
  }
  // Looked at first: opening a stranger's pipe or device could block or do something.
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    opened.error = errno;
    return opened;
  }
  if (!same_file(found, what)) {
    opened.other_file = true;
    return opened;
  }
  Descriptor fd{::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  if (fd.get() < 0 || fstat(fd.get(), &found) != 0) {
    opened.error = errno;
    return opened;
  }
  opened.other_file = !same_file(found, what);
  if (!opened.other_file) opened.descriptor = fd.release();
  return opened;
}

bool may_pass(int error) {
  return error == ENOENT || error == EAGAIN || error == EINTR || error == ESRCH ||
         error == ECONNREFUSED;
}

std::string name_of(const ShmBlob& what) {
  return "rank " + std::to_string(what.world_rank) + ", worker " + std::to_string(what.worker) +
         " (process " + std::to_string(what.pid) + ")";
}

Status cannot_open(const ShmBlob& what, const std::string& path, const std::string& reason,
                   std::int32_t rank) {
  std::string text = "import: the shared memory of " + name_of(what) + " at " + path + ": " +
                     reason + " (rank " + std::to_string(rank) +
                     "); both ranks must run as one user in one process-id namespace and the peer "
                     "must live; otherwise use another GroupConfig::transport";
  return {Code::peer_failed, Scope::peer, std::move(text),
          static_cast<std::int32_t>(what.world_rank)};
}

}  // namespace

ShmSegment::ShmSegment(int descriptor, ShmBlob what)
    : owner_pid_{getpid()}, descriptor_{descriptor}, what_{std::move(what)} {}

ShmSegment::~ShmSegment() {
  if (getpid() != owner_pid_) return;
  if (mapping_ != nullptr) munmap(mapping_, what_.file_bytes);
  seal();
}

void ShmSegment::seal() noexcept {
  if (descriptor_ < 0 || getpid() != owner_pid_) return;
  close(descriptor_);
  descriptor_ = -1;
}

int ShmSegment::attach(bool owner) {
  const std::size_t file_bytes = what_.file_bytes;
  void* mapped = mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) return errno;
  mapping_ = static_cast<std::byte*>(mapped);
#ifdef MADV_HUGEPAGE
  if (what_.huge_pages) madvise(mapping_, file_bytes, MADV_HUGEPAGE);  // a wish: refusal is fine
#endif
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14
  while (true) {
    if (madvise(mapping_, file_bytes, populate_write) == 0) return 0;
    if (errno == EINVAL) break;  // older kernel
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  // Touch every page as a write that changes nothing, since peers may already write here.
  if (owner) {
    for (std::size_t at = 0; at < file_bytes; at += shm_page_bytes) mapping_[at] = std::byte{0};
    return 0;
  }
  for (std::size_t at = 0; at < file_bytes; at += shm_page_bytes) {
    auto* byte = reinterpret_cast<unsigned char*>(mapping_ + at);
    std::atomic_ref<unsigned char>{*byte}.fetch_or(0, std::memory_order_relaxed);
  }
  return 0;
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::make(ShmBlob what, const ShmSettings& settings) {
  what.file_bytes = shm_file_bytes(what.bytes);
  Descriptor fd{open_unnamed(settings.directory)};
  if (fd.get() < 0) return no_room(what, settings, "making a file", errno);
  if (const int error = reserve(fd.get(), what.file_bytes); error != 0) {
    return no_room(what, settings, "reserving space", error);
  }
  struct stat found {};
  if (fstat(fd.get(), &found) != 0) return no_room(what, settings, "fstat", errno);
  if (const int error = fill_random(what.nonce); error != 0) {
    return no_room(what, settings, "getrandom", error);
  }
  what.pid = getpid();
  what.descriptor = fd.get();
  what.device = found.st_dev;
  what.inode = found.st_ino;
  std::shared_ptr<ShmSegment> segment{new ShmSegment{fd.release(), what}};
  if (const int error = segment->attach(true); error != 0) {
    return no_room(what, settings, "mapping a file", error);
  }
  write_header(segment->mapping_, what);
  return segment;
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::open(const ShmBlob& what,
                                                     const ShmSettings& settings,
                                                     std::int32_t rank) {
  const std::string path =
      "/proc/" + std::to_string(what.pid) + "/fd/" + std::to_string(what.descriptor);
  const auto end = std::chrono::steady_clock::now() + settings.patience;
  std::chrono::milliseconds pause{1};
  Opened opened;
  while (true) {
    opened = open_once(path, what, settings);
    if (!may_pass(opened.error) || std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds{50});
  }
  if (opened.other_file) return cannot_open(what, path, "it is another file", rank);
  if (opened.error != 0) return cannot_open(what, path, error_text(opened.error), rank);
  std::shared_ptr<ShmSegment> segment{new ShmSegment{opened.descriptor, what}};
  if (const int error = segment->attach(false); error != 0) {
    return cannot_open(what, path, "mapping failed: " + error_text(error), rank);
  }
  segment->seal();  // the mapping is enough
  while (true) {
    const std::string fault = header_fault(segment->mapping_, what);
    if (fault.empty()) return segment;
    if (fault != "magic" || std::chrono::steady_clock::now() >= end) {
      return cannot_open(what, path, "its header differs: " + fault, rank);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

}  // namespace m2n::transport
