// Arenas of peers that are mapped on demand: growth, peers that have ended, reused identifiers, lack of descriptors.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "transports/shm/arena.h"
#include "transports/shm/arena_view.h"
#include "transports/shm/shm.h"

namespace shoal::shm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A process with an arena, whose first page holds its mark.
class Peer {
 public:
  static constexpr std::byte kMark{77};

  explicit Peer(const std::function<void()>& prepare = [] {}) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      Arena* const arena = Arena::instance();
      *static_cast<std::byte*>(arena->allocate(400 * kMiB).value()) = kMark;
      prepare();
      const ArenaFile file = arena->file();
      if (::write(ends[1], &file, sizeof file) != static_cast<ssize_t>(sizeof file)) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    EXPECT_EQ(::read(ends[0], &file_, sizeof file_), static_cast<ssize_t>(sizeof file_));
    ::close(ends[0]);
  }
  ~Peer() { kill(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] const ArenaFile& file() const { return file_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  ArenaFile file_;
};

TEST(ShmArena, IsMappedAtFirstUseAndGrows) {
  Peer peer;
  Descriptor reserve;
  ArenaView view(peer.file(), reserve);
  EXPECT_EQ(view.mapped_bytes(), 0U);
  std::byte* const first = view.at(0, 4096);
  ASSERT_NE(first, nullptr) << std::strerror(view.error());
  EXPECT_EQ(*first, Peer::kMark);
  const std::size_t before = view.mapped_bytes();
  EXPECT_LE(before, 256 * kMiB);
  EXPECT_EQ(view.at(before - 4096, 4096), first + before - 4096);
  EXPECT_EQ(view.mapped_bytes(), before) << "it was large enough";
  std::byte* const far = view.at(before - 4096, 8192);
  ASSERT_NE(far, nullptr) << std::strerror(view.error());
  EXPECT_LE(view.mapped_bytes(), 3 * before) << "the earlier mapping and one of twice its size";
  far[0] = std::byte{5};
  EXPECT_EQ(first[before - 4096], std::byte{5}) << "earlier addresses stay valid, and show the same memory";
  EXPECT_EQ(*view.at(0, 1), Peer::kMark);
}

TEST(ShmArena, PlacesOutsideAreRefused) {
  Peer peer;
  Descriptor reserve;
  ArenaView view(peer.file(), reserve);
  const std::size_t size = peer.file().size_bytes;
  EXPECT_EQ(view.at(size, 1), nullptr);
  EXPECT_EQ(view.at(size - 1, 2), nullptr);
  EXPECT_EQ(view.at(~std::uint64_t{0}, 2), nullptr);
  EXPECT_EQ(view.at(1, ~std::size_t{0}), nullptr);
  EXPECT_EQ(view.error(), 0);
  EXPECT_EQ(view.mapped_bytes(), 0U) << "nothing was mapped for it";
  EXPECT_NE(view.at(size - 1, 1), nullptr);
  EXPECT_EQ(ArenaView().at(0, 1), nullptr);
}

TEST(ShmArena, PeerThatEndedBeforeFirstUseIsNamedSo) {
  Peer peer;
  Descriptor reserve;
  ArenaView view(peer.file(), reserve);
  peer.kill();
  EXPECT_EQ(view.at(0, 1), nullptr);
  EXPECT_EQ(view.error(), ESRCH);
}

TEST(ShmArena, MappedArenaOutlivesItsProcess) {
  Peer peer;
  Descriptor reserve;
  ArenaView view(peer.file(), reserve);
  ASSERT_NE(view.at(0, 1), nullptr);
  peer.kill();
  std::byte* const far = view.at(300 * kMiB, 1);
  ASSERT_NE(far, nullptr) << std::strerror(view.error());
  EXPECT_EQ(*view.at(0, 1), Peer::kMark);
}

TEST(ShmArena, OtherFileOfAReusedIdentifierIsRefused) {
  Peer peer;
  Descriptor opened;
  ArenaFile file = peer.file();
  file.pid = ::getpid();  // has other files, or none, under that number
  EXPECT_EQ(open_arena(file, opened), ESRCH);
  file = peer.file();
  file.descriptor = 0;
  EXPECT_EQ(open_arena(file, opened), ESRCH);
  file = peer.file();
  file.inode += 1;
  EXPECT_EQ(open_arena(file, opened), ESRCH);
  EXPECT_FALSE(opened.valid());
  EXPECT_EQ(open_arena(peer.file(), opened), 0);
}

TEST(ShmArena, ReserveServesWhereDescriptorsHaveRunOut) {
  Peer peer;
  Descriptor reserve = make_reserve();
  ASSERT_TRUE(reserve.valid());
  Descriptor none;
  ArenaView with(peer.file(), reserve);
  ArenaView without(peer.file(), none);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(Descriptor(::dup(0)).get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::byte* const not_mapped = without.at(0, 1);
  const int error = without.error();
  std::byte* const mapped = with.at(0, 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(not_mapped, nullptr);
  EXPECT_EQ(error, EMFILE);
  EXPECT_NE(mapped, nullptr);
  EXPECT_TRUE(reserve.valid()) << "it has a descriptor again";
  EXPECT_NE(without.at(0, 1), nullptr) << "a later use succeeds";
}

// The system lets no other process of the user look at such a process.
TEST(ShmArena, ProcessThatForbidsAccessIsNotMapped) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) ::_exit(2);
    ::prctl(PR_SET_DUMPABLE, 1);  // a change of the user has reset it
    const Peer open;
    const Peer closed([] { ::prctl(PR_SET_DUMPABLE, 0); });
    Descriptor opened;
    if (open_arena(open.file(), opened) != 0) ::_exit(3);
    ::_exit(open_arena(closed.file(), opened) == EACCES ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this process may not change its user";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// Rank 1 of two: lends a tile, then waits to be killed.
[[noreturn]] void lend_tile(const std::string& leader, int told) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto transport = std::move(make_shm_transport({.rank = 1, .job_id = 9})).value();
  const int peer = 0;
  const auto links = transport->connect(std::span(&peer, 1), std::span(&leader, 1),
                                        std::chrono::steady_clock::now() + std::chrono::seconds(30));
  if (!links.ok()) ::_exit(1);
  const std::span data(static_cast<std::byte*>(Arena::instance()->allocate(8192).value()), 8192);
  while (!transport->shared_offset(data.data(), data.size())) ::usleep(1000);  // until both ranks can map
  const char done = (*links)[0]->try_lend({0, 0, 0, 8192, 0}, data) && (*links)[0]->sent_tiles() == 0 ? 'y' : 'n';
  static_cast<void>(::write(told, &done, 1) == 1);
  for (;;) ::pause();
}

TEST(ShmArena, TileOfAPeerThatDiedBeforeBreaksTheLink) {
  ASSERT_NE(Arena::instance(), nullptr);
  auto transport = std::move(make_shm_transport({.rank = 0, .job_id = 9})).value();
  const std::string address = transport->address();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) lend_tile(address, ends[1]);
  ::close(ends[1]);
  const int peer = 1;
  const std::string unused = "the lowest rank connects to nobody";
  const auto links = transport->connect(std::span(&peer, 1), std::span(&unused, 1),
                                        std::chrono::steady_clock::now() + std::chrono::seconds(30));
  char done = 0;
  EXPECT_EQ(::read(ends[0], &done, 1), 1);
  EXPECT_EQ(done, 'y') << "the tile was not lent";
  ::close(ends[0]);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(links.ok()) << links.status().to_string();
  Link& link = *(*links)[0];
  for (int call = 0; call < 10; ++call) {
    EXPECT_EQ(link.peek(), nullptr) << "its memory is gone";
    static_cast<void>(transport->progress());
  }
  EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
  EXPECT_NE(link.status().message().find("rank 1"), std::string::npos) << link.status().message();
}

}  // namespace
}  // namespace shoal::shm
