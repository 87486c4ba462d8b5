// Ranks of a measurement: forked before the first use of CUDA, all timed together through shared memory.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include <pthread.h>

namespace shoal::gpu {

/// Memory shared by all ranks.
struct SharedPage {
  pthread_barrier_t barrier;
  double seconds[16];
  char text[4096];  ///< data of rank 0 for the others
};

/// Forks `ranks` processes that run body(rank, page); their exit status is its result. 0 where all are 0, 77 where one was
/// skipped, else 1.
inline int fork_ranks(int ranks, int limit_s, const std::function<int(int, SharedPage&)>& body) {
  auto* page =
      static_cast<SharedPage*>(::mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&page->barrier, &attributes, static_cast<unsigned>(ranks));
  std::vector<pid_t> children;
  std::fflush(stdout);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(static_cast<unsigned>(limit_s));
      const int code = body(rank, *page);
      std::fflush(stdout);
      ::_exit(code);
    }
    children.push_back(child);
  }
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    worst = code == 0 || worst == 77 ? worst : code == 77 ? 77 : 1;
  }
  ::munmap(page, sizeof(SharedPage));
  return worst;
}

/// Times `calls` calls of `call` and one of `finish` on all ranks at once, several times. Returns the median of the slowest
/// rank's times on rank 0.
inline double time_together(int rank, int ranks, SharedPage& page, int calls, const std::function<void()>& call,
                            const std::function<void()>& finish) {
  constexpr int kRuns = 9;
  std::vector<double> runs;
  for (int run = 0; run < kRuns; ++run) {
    finish();
    pthread_barrier_wait(&page.barrier);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    finish();
    page.seconds[rank] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
    pthread_barrier_wait(&page.barrier);
    if (run >= 2) runs.push_back(*std::max_element(page.seconds, page.seconds + ranks));
    pthread_barrier_wait(&page.barrier);
  }
  std::sort(runs.begin(), runs.end());
  return runs[runs.size() / 2];
}

inline constexpr std::size_t kMeasuredBytes[] = {1024, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864};
inline int calls_for(std::size_t bytes) { return bytes <= 1048576 ? 50 : 10; }

inline void print_row(const char* library, const char* how, int ranks, std::size_t bytes, double seconds) {
  const double busbw = static_cast<double>(bytes) / seconds / 1e9 * 2 * (ranks - 1) / ranks;
  std::printf(
      "{\"library\": \"%s\", \"how\": \"%s\", \"collective\": \"all_reduce\", \"type\": \"float32\", \"ranks\": %d, \"bytes\": "
      "%zu, "
      "\"latency_us\": %.1f, \"busbw_gbs\": %.2f}\n",
      library, how, ranks, bytes, seconds * 1e6, busbw);
  std::fflush(stdout);
}

}  // namespace shoal::gpu
