#include "tests/hostile/job.h"

#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/store.h>

#include "src/join/startup_exchange.h"
#include "src/trust/refusals.h"
#include "tests/hostile/ways.h"
#include "transports/shm/segment.h"
#include "transports/tcp/address.h"
#include "transports/tcp/repairs.h"

namespace shoal::hostile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSumsOfSecond = 100;  // and it works

/// A store's part, by a prefix of its keys. Makes the loner's node another one, tells where this rank listens, and holds up
/// what the stages hold up. What is said it knows by its looks, as the keys and the order of the start-up are the library's
/// affair.
class PartOfStore final : public Store {
 public:
  PartOfStore(Store& store, std::string prefix, int rank) : store_(store), prefix_(std::move(prefix)), rank_(rank) {}
  Status set(std::string_view key, std::string_view value) override {
    const bool alone = rank_ == kLoner && value.ends_with(node_identity());
    if (const auto plane = plane_of(key, value); !plane.empty()) {
      const Status status = store_.set(told_key(prefix_, plane, rank_), without_sign(value));
      if (!status.ok()) return status;
    }
    return store_.set(prefix_ + std::string(key), std::string(value) + (alone ? "/elsewhere" : ""));
  }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    auto value = store_.get(prefix_ + std::string(key), deadline);
    if (value.ok()) {
      if (const auto plane = plane_of(key, *value); !plane.empty()) plan_way(plane, rank_of(key), without_sign(*value));
    }
    return value;
  }

 private:
  static int rank_of(std::string_view key) { return std::atoi(std::string(key.substr(key.rfind('/') + 1)).c_str()); }
  // In front of what a rank says there may be a sign that it goes on.
  static std::string without_sign(std::string_view value) { return std::string(value.substr(value.starts_with('+') ? 1 : 0)); }

  // Which of a rank's addresses that is; empty where it is something else. First come those of its control links.
  std::string plane_of(std::string_view key, std::string_view said) {
    const std::string value = without_sign(said);
    if (value.size() > sizeof(shm::kSegmentMagic) &&
        std::memcmp(value.data(), &shm::kSegmentMagic, sizeof(shm::kSegmentMagic)) == 0)
      return "shm";
    if (value.empty() || !tcp::split_addresses(value).ok()) return {};
    std::string& first = first_addresses_[rank_of(key)];
    if (first.empty()) first = key;
    return first == key ? "control" : "network";
  }

  // Odd ranks go by IPv6 where there is any. The first connection to a listener gets through, for somebody to record it.
  void plan_way(std::string_view plane, int to, const std::string& value) const {
    const auto addresses = tcp::split_addresses(value);
    if (!addresses.ok()) return;  // of shared memory
    bool six = false;
    for (const auto& address : *addresses) six |= address.family() == AF_INET6;
    int stage = 0;
    if (prefix_ == kSecond && plane == "network") stage = kOpen;
    if (prefix_ == kSecond && plane == "control" && rank_ == kLate) stage = to == kLoner ? kData : kSharedMemory;
    for (const auto& address : *addresses) {
      const bool chosen = (address.family() == AF_INET6) == (six && rank_ % 2 == 1);
      hold_up(address.to_string(), chosen ? 1 : 0, chosen ? stage : kNever);
    }
  }

  Store& store_;
  std::string prefix_;
  int rank_;
  std::map<int, std::string> first_addresses_;  // rank -> key
};

/// A sum, and what was wrong with it. `more`: rank 0 says in the sum itself that there will be another one.
std::string sum(Communicator& communicator, int call, bool* more) {
  constexpr std::size_t kCount = 3000;
  std::vector<float> data(kCount);
  const auto base = static_cast<float>(call % 1000);
  for (std::size_t i = 0; i < kCount; ++i) data[i] = base + static_cast<float>(communicator.rank()) + static_cast<float>(i % 7);
  data[0] = communicator.rank() == 0 && *more ? 1 : 0;
  const Status status = communicator.all_reduce(data.data(), data.data(), kCount, DataType::float32, ReduceOp::sum);
  if (!status.ok()) return "a sum failed: " + status.to_string();
  for (std::size_t i = 1; i < kCount; ++i) {
    const float right = kRanks * (base + static_cast<float>(i % 7)) + kRanks * (kRanks - 1) / 2.0F;
    if (data[i] != right) return "call " + std::to_string(call) + " has a wrong sum";
  }
  *more = data[0] != 0;
  return {};
}

/// Sums until it is over, and tells the board how this process is.
std::string keep_summing(Communicator& communicator, Board& board) {
  Board::Rank& own = board.ranks[static_cast<std::size_t>(communicator.rank())];
  bool more = true;
  for (int call = 0; more; ++call) {
    more = !board.over;
    if (std::string wrong = sum(communicator, call, &more); !wrong.empty()) return "first communicator: " + wrong;
    own.refused = refusals().count;
    if (call % 16 == 0) own.heap_bytes = static_cast<long>(::mallinfo2().uordblks);
    ++own.sums;
  }
  return {};
}

}  // namespace

std::string told_key(const std::string& communicator, const std::string& plane, int rank) {
  return "told/" + communicator + plane + "/" + std::to_string(rank);
}

std::string rank_body(int rank, int port, Board& board, std::chrono::milliseconds time_limit) {
  Board::Rank& own = board.ranks[static_cast<std::size_t>(rank)];
  watch_ways(board);
  auto store = make_tcp_store("127.0.0.1", port, rank == 0, kJob, Clock::now() + time_limit);
  if (!store.ok()) return store.status().to_string();
  CommunicatorOptions options;
  options.timeout = time_limit;
  PartOfStore first_part(**store, kFirst, rank);
  auto first = Communicator::create(first_part, rank, kRanks, options);
  if (!first.ok()) return "first: " + first.status().to_string();
  std::string wrong;
  std::thread worker([&] { wrong = keep_summing(**first, board); });

  own.pid = ::getpid();
  PartOfStore second_part(**store, kSecond, rank);
  auto second = Communicator::create(second_part, rank, kRanks, options);
  std::string wrong_second = second.ok() ? "" : "second: " + second.status().to_string();
  bool more = true;
  for (int call = 0; more && wrong_second.empty(); ++call) {
    more = !board.over;
    wrong_second = sum(**second, call, &more);
    if (call == kSumsOfSecond && wrong_second.empty()) own.has_second = true;
  }
  if (!wrong_second.empty()) board.over = true;
  worker.join();
  if (!wrong.empty()) return wrong;
  if (!wrong_second.empty()) return "second communicator: " + wrong_second;
  if (tcp::repairs().connections != 0) return "connections of the job were lost";
  if ((*second)->barrier().code() != StatusCode::ok) return "no last barrier";
  return {};
}

}  // namespace shoal::hostile
