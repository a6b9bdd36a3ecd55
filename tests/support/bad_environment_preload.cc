// Stands before the C library in processes that are to have a bad environment (bad_environment.h). Every call passes
// through, at the cost of a look at a page, unless the page says that it fails at the moment. What a new descriptor is
// made by fails without descriptors, and what makes a process without fork; threads are not meant, nor is vfork, which
// returns twice to who has called it. On a bad disk, files and folders cannot be opened and descriptors of its files
// not be read; what is mapped, written or renamed is well.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "tests/support/bad_environment_page.h"

namespace geopipe {
namespace {

BadEnvironmentPage nothing;           // is wrong
BadEnvironmentPage* page = &nothing;  // by raw calls, which nothing here makes fail

__attribute__((constructor)) void TakePage() {
  const char* path = getenv(BadEnvironmentPage::kVariable);
  const int fd = path == nullptr ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0) {
    return;
  }
  void* memory = mmap(nullptr, sizeof(BadEnvironmentPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  page = memory == MAP_FAILED ? &nothing : static_cast<BadEnvironmentPage*>(memory);
}

// The C library's own function. Async-signal-safe from the second call on.
template <class Function>
Function* Next(Function* /*type*/, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool Is(Lack lack) {
  const int64_t until_ns = page->until_ns[static_cast<size_t>(lack)].load(std::memory_order_relaxed);
  if (until_ns == 0) {
    return false;
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec < until_ns;
}

bool Fail(Lack lack, int error) {
  page->failed[static_cast<size_t>(lack)].fetch_add(1, std::memory_order_relaxed);
  errno = error;
  return true;
}

bool LacksDescriptors() { return Is(Lack::kDescriptors) && Fail(Lack::kDescriptors, EMFILE); }
bool LacksFork() { return Is(Lack::kFork) && Fail(Lack::kFork, EAGAIN); }

bool IsOnDisk(const struct stat& status) {
  for (const std::atomic<uint64_t>& disk : page->disks) {
    if (disk.load(std::memory_order_relaxed) == status.st_dev && status.st_dev != 0) {
      return true;
    }
  }
  return false;
}

bool FailOnDisk(bool is_estale) { return is_estale ? Fail(Lack::kEstale, ESTALE) : Fail(Lack::kEio, EIO); }

// True when the descriptor's file cannot be read. errno is kept otherwise.
bool CannotRead(int fd) {
  const bool is_estale = Is(Lack::kEstale);
  if (!is_estale && !Is(Lack::kEio)) {
    return false;
  }
  const int before = errno;
  struct stat status {};
  if (syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0 && S_ISREG(status.st_mode) && IsOnDisk(status)) {
    return FailOnDisk(is_estale);
  }
  errno = before;
  return false;
}

// True when what `path` names, or the folder where it would be made, cannot be opened.
bool CannotOpen(int folder, const char* path) {
  if (LacksDescriptors()) {
    return true;
  }
  const bool is_estale = Is(Lack::kEstale);
  if ((!is_estale && !Is(Lack::kEio)) || path == nullptr) {
    return false;
  }
  const int before = errno;
  struct stat status {};
  bool is_there = syscall(SYS_newfstatat, folder, path, &status, 0) == 0;
  if (!is_there) {
    char parent[PATH_MAX] = ".";
    const char* slash = strrchr(path, '/');
    const size_t length = slash == nullptr ? 0 : static_cast<size_t>(slash - path) + 1;
    if (length > 0 && length < sizeof(parent)) {
      memcpy(parent, path, length);
      parent[length] = 0;
    }
    is_there = syscall(SYS_newfstatat, folder, parent, &status, 0) == 0;
  }
  if (is_there && IsOnDisk(status)) {
    return FailOnDisk(is_estale);
  }
  errno = before;
  return false;
}

}  // namespace
}  // namespace geopipe

#define NEXT(name) static auto* const next = geopipe::Next(&(name), #name)
// An open's mode, which is there for some flags only.
#define TAKE_MODE(last)                                             \
  mode_t mode = 0;                                                  \
  if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) { \
    va_list rest;                                                   \
    va_start(rest, last);                                           \
    mode = va_arg(rest, mode_t);                                    \
    va_end(rest);                                                   \
  }

extern "C" {

int open(const char* path, int flags, ...) {
  NEXT(open);
  TAKE_MODE(flags)
  return geopipe::CannotOpen(AT_FDCWD, path) ? -1 : next(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  NEXT(open64);
  TAKE_MODE(flags)
  return geopipe::CannotOpen(AT_FDCWD, path) ? -1 : next(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  NEXT(openat);
  TAKE_MODE(flags)
  return geopipe::CannotOpen(folder, path) ? -1 : next(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  NEXT(openat64);
  TAKE_MODE(flags)
  return geopipe::CannotOpen(folder, path) ? -1 : next(folder, path, flags, mode);
}
int creat(const char* path, mode_t mode) {
  NEXT(creat);
  return geopipe::CannotOpen(AT_FDCWD, path) ? -1 : next(path, mode);
}
// Names that calls have in sources that were compiled with _FORTIFY_SOURCE.
int FortifiedOpen(const char* path, int flags) __asm__("__open_2");
int FortifiedOpen(const char* path, int flags) { return open(path, flags); }
int FortifiedOpen64(const char* path, int flags) __asm__("__open64_2");
int FortifiedOpen64(const char* path, int flags) { return open64(path, flags); }
int FortifiedOpenAt(int folder, const char* path, int flags) __asm__("__openat_2");
int FortifiedOpenAt(int folder, const char* path, int flags) { return openat(folder, path, flags); }
int FortifiedOpenAt64(int folder, const char* path, int flags) __asm__("__openat64_2");
int FortifiedOpenAt64(int folder, const char* path, int flags) { return openat64(folder, path, flags); }
FILE* fopen(const char* path, const char* mode) {
  NEXT(fopen);
  return geopipe::CannotOpen(AT_FDCWD, path) ? nullptr : next(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  NEXT(fopen64);
  return geopipe::CannotOpen(AT_FDCWD, path) ? nullptr : next(path, mode);
}
DIR* opendir(const char* path) {
  NEXT(opendir);
  return geopipe::CannotOpen(AT_FDCWD, path) ? nullptr : next(path);
}

int socket(int domain, int type, int protocol) {
  NEXT(socket);
  return geopipe::LacksDescriptors() ? -1 : next(domain, type, protocol);
}
int socketpair(int domain, int type, int protocol, int* ends) {
  NEXT(socketpair);
  return geopipe::LacksDescriptors() ? -1 : next(domain, type, protocol, ends);
}
int accept(int fd, sockaddr* address, socklen_t* length) {
  NEXT(accept);
  return geopipe::LacksDescriptors() ? -1 : next(fd, address, length);
}
int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  NEXT(accept4);
  return geopipe::LacksDescriptors() ? -1 : next(fd, address, length, flags);
}
int pipe(int* ends) {
  NEXT(pipe);
  return geopipe::LacksDescriptors() ? -1 : next(ends);
}
int pipe2(int* ends, int flags) {
  NEXT(pipe2);
  return geopipe::LacksDescriptors() ? -1 : next(ends, flags);
}
int dup(int fd) {
  NEXT(dup);
  return geopipe::LacksDescriptors() ? -1 : next(fd);
}
int eventfd(unsigned value, int flags) {
  NEXT(eventfd);
  return geopipe::LacksDescriptors() ? -1 : next(value, flags);
}
int epoll_create1(int flags) {
  NEXT(epoll_create1);
  return geopipe::LacksDescriptors() ? -1 : next(flags);
}
int timerfd_create(clockid_t clock, int flags) {
  NEXT(timerfd_create);
  return geopipe::LacksDescriptors() ? -1 : next(clock, flags);
}
int inotify_init1(int flags) {
  NEXT(inotify_init1);
  return geopipe::LacksDescriptors() ? -1 : next(flags);
}
int memfd_create(const char* name, unsigned flags) {
  NEXT(memfd_create);
  return geopipe::LacksDescriptors() ? -1 : next(name, flags);
}

pid_t fork() {
  NEXT(fork);
  return geopipe::LacksFork() ? -1 : next();
}
int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  NEXT(posix_spawn);
  return geopipe::LacksFork() ? EAGAIN : next(pid, path, actions, attributes, arguments, environment);
}
int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  NEXT(posix_spawnp);
  return geopipe::LacksFork() ? EAGAIN : next(pid, file, actions, attributes, arguments, environment);
}

ssize_t read(int fd, void* bytes, size_t size) {
  NEXT(read);
  return geopipe::CannotRead(fd) ? -1 : next(fd, bytes, size);
}
ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  NEXT(pread);
  return geopipe::CannotRead(fd) ? -1 : next(fd, bytes, size, offset);
}
ssize_t pread64(int fd, void* bytes, size_t size, off64_t offset) {
  NEXT(pread64);
  return geopipe::CannotRead(fd) ? -1 : next(fd, bytes, size, offset);
}
ssize_t readv(int fd, const iovec* parts, int count) {
  NEXT(readv);
  return geopipe::CannotRead(fd) ? -1 : next(fd, parts, count);
}
ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
  NEXT(preadv);
  return geopipe::CannotRead(fd) ? -1 : next(fd, parts, count, offset);
}
ssize_t FortifiedRead(int fd, void* bytes, size_t size, size_t room) __asm__("__read_chk");
ssize_t FortifiedRead(int fd, void* bytes, size_t size, size_t /*room*/) { return read(fd, bytes, size); }
ssize_t FortifiedPread(int fd, void* bytes, size_t size, off_t offset, size_t room) __asm__("__pread_chk");
ssize_t FortifiedPread(int fd, void* bytes, size_t size, off_t offset, size_t /*room*/) {
  return pread(fd, bytes, size, offset);
}
ssize_t FortifiedPread64(int fd, void* bytes, size_t size, off64_t offset, size_t room) __asm__("__pread64_chk");
ssize_t FortifiedPread64(int fd, void* bytes, size_t size, off64_t offset, size_t /*room*/) {
  return pread64(fd, bytes, size, offset);
}

}  // extern "C"
