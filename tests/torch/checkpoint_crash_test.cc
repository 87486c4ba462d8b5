// A rank dies while a checkpoint of a spread model is saved, before each of its calls that change the disk.
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/checkpoint/checkpoint.h"

namespace {

constexpr int kNever = -1;
thread_local int calls_before_death = kNever;  // of this thread
thread_local int calls_made = 0;

/// Ends the process before the call that the test has chosen.
void on_disk_call() {
  ++calls_made;
  if (calls_before_death != kNever && calls_before_death-- == 0) (void)::raise(SIGKILL);
}

}  // namespace

// In place of those of the C library, for this program and for libstdc++'s filesystem.
extern "C" {
int fsync(int file) {
  on_disk_call();
  return static_cast<int>(::syscall(SYS_fsync, file));
}
int rename(const char* from, const char* to) noexcept {
  on_disk_call();
  return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  on_disk_call();
  return static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}
}  // extern "C"

namespace shoal::parallel::pipeline_testing {
namespace {

constexpr int kSavingRanks = 3;

/// Tensor "parameter/r" of rank r, with values that tell the checkpoint.
ModelTensor tensor_of(int rank, float checkpoint) {
  return {"parameter/" + std::to_string(rank), at::full({8}, 10.0F * static_cast<float>(rank) + checkpoint), {}};
}

Result<std::string> save(Communicator& all, const std::string& root, int checkpoint) {
  return save_checkpoint(all, {.root = root,
                               .tag = "step-" + std::to_string(checkpoint),
                               .file = "stage" + std::to_string(all.rank()) + ".pt",
                               .tensors = {tensor_of(all.rank(), static_cast<float>(checkpoint))},
                               .removes_previous = true});
}

/// The newest checkpoint in `root` is that one, and whole.
void check_newest(Communicator& one, const std::string& root, int checkpoint) {
  const auto stored = open_checkpoint(one, root);
  check(stored.ok(), stored.status().to_string());
  check(stored->folder == root + "/step-" + std::to_string(checkpoint), "the newest is " + stored->folder);
  std::vector<ModelTensor> wanted;
  for (int rank = 0; rank < kSavingRanks; ++rank) {
    wanted.push_back(tensor_of(rank, static_cast<float>(checkpoint)));
    wanted.push_back(generator_of(rank));
  }
  const auto found = load_tensors(one, *stored, wanted);
  check(found.ok(), found.status().to_string());
  for (std::size_t i = 0; i < wanted.size(); i += 2) check_equal((*found)[i], wanted[i].value, wanted[i].name);
}

/// The calls of each rank in a save, as the ranks tell the process that has forked them.
using CallsOfRanks = std::array<int, kSavingRanks>;
CallsOfRanks* make_shared_calls() {
  void* const memory = mmap(nullptr, sizeof(CallsOfRanks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) CallsOfRanks{};
}

/// Saves checkpoint 1, then 2, in which `victim` dies before its call number `calls`. Checkpoint 1 or 2 must be whole then.
void kill_in_save(int victim, int calls, int newest) {
  const Folder folder;
  const std::string root = folder.path() + "/saved";
  const std::string name = "rank " + std::to_string(victim);
  run_ranks(
      kSavingRanks,
      [&](Communicator& all) {
        check(save(all, root, 1).ok(), "checkpoint 1");
        if (all.rank() == victim) calls_before_death = calls;
        const Status status = save(all, root, 2).status();
        const bool is_loss = status.code() == StatusCode::peer_failed || status.code() == StatusCode::aborted;
        check(is_loss && shoal::testing::mentions_all(status.message(), {name}), name + " in: " + status.to_string());
      },
      victim);
  run_ranks(1, [&](Communicator& one) { check_newest(one, root, newest); });
}

TEST(CheckpointCrash, LeavesAWholeCheckpoint) {
  CallsOfRanks* const calls_of = make_shared_calls();
  ASSERT_NE(calls_of, nullptr);
  const Folder folder;
  const std::string root = folder.path() + "/saved";
  run_ranks(kSavingRanks, [&](Communicator& all) {
    check(save(all, root, 1).ok(), "checkpoint 1");
    calls_made = 0;
    check(save(all, root, 2).ok(), "checkpoint 2");
    calls_of->at(static_cast<std::size_t>(all.rank())) = calls_made;
  });
  run_ranks(1, [&](Communicator& one) { check_newest(one, root, 2); });
  // A file is synchronized, renamed, and its folder synchronized. Rank 0 writes its own file, the generators, the manifest and
  // "newest"; then it removes checkpoint 1.
  constexpr int kCallsOfAFile = 3;
  constexpr int kUntilNewest = 3 * kCallsOfAFile + 2;
  EXPECT_EQ(calls_of->at(1), kCallsOfAFile);
  const int calls_of_0 = calls_of->at(0);
  munmap(calls_of, sizeof(CallsOfRanks));
  ASSERT_GT(calls_of_0, 4 * kCallsOfAFile);
  for (int calls = 0; calls < kCallsOfAFile; ++calls) kill_in_save(1, calls, 1);
  for (int calls = 0; calls < kUntilNewest; ++calls) kill_in_save(0, calls, 1);
  for (int calls = kUntilNewest; calls < calls_of_0; ++calls) kill_in_save(0, calls, 2);
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
