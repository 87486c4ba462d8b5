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
#include "tests/hostile/connection_hooks.h"
#include "transports/shm/segment.h"
#include "transports/tcp/address.h"
#include "transports/tcp/repairs.h"

namespace shoal::hostile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSumsOfSecond = 100;  // then the second communicator counts as working

/// A store with a key prefix. Gives the isolated rank another node, publishes the listening addresses of this rank, and holds
/// back connections by stage. It recognizes addresses by their form, since keys and order of the start-up are internal to the
/// library.
class PrefixedStore final : public Store {
 public:
  PrefixedStore(Store& store, std::string prefix, int rank) : store_(store), prefix_(std::move(prefix)), rank_(rank) {}
  Status set(std::string_view key, std::string_view value) override {
    const bool alone = rank_ == kIsolated && value.ends_with(node_identity());
    if (const auto plane = plane_of(key, value); !plane.empty()) {
      const Status status = store_.set(listener_key(prefix_, plane, rank_), without_mark(value));
      if (!status.ok()) return status;
    }
    return store_.set(prefix_ + std::string(key), std::string(value) + (alone ? "/elsewhere" : ""));
  }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    auto value = store_.get(prefix_ + std::string(key), deadline);
    if (value.ok()) {
      if (const auto plane = plane_of(key, *value); !plane.empty())
        limit_connections(plane, rank_of(key), without_mark(*value));
    }
    return value;
  }

 private:
  static int rank_of(std::string_view key) { return std::atoi(std::string(key.substr(key.rfind('/') + 1)).c_str()); }
  // A leading '+' marks a value that continues.
  static std::string without_mark(std::string_view value) { return std::string(value.substr(value.starts_with('+') ? 1 : 0)); }

  // The plane of an address value; "" for other values. The first addresses of a rank are those of its control links.
  std::string plane_of(std::string_view key, std::string_view text) {
    const std::string value = without_mark(text);
    if (value.size() > sizeof(shm::kSegmentMagic) &&
        std::memcmp(value.data(), &shm::kSegmentMagic, sizeof(shm::kSegmentMagic)) == 0)
      return "shm";
    if (value.empty() || !tcp::split_addresses(value).ok()) return {};
    std::string& first = first_addresses_[rank_of(key)];
    if (first.empty()) first = key;
    return first == key ? "control" : "network";
  }

  // Odd ranks use IPv6 where available. The first connection to a listener passes, so that it is recorded.
  void limit_connections(std::string_view plane, int to, const std::string& value) const {
    const auto addresses = tcp::split_addresses(value);
    if (!addresses.ok()) return;  // an address of shared memory
    bool six = false;
    for (const auto& address : *addresses) six |= address.family() == AF_INET6;
    int stage = 0;
    if (prefix_ == kSecond && plane == "network") stage = kOpen;
    if (prefix_ == kSecond && plane == "control" && rank_ == kLate) stage = to == kIsolated ? kData : kSharedMemory;
    for (const auto& address : *addresses) {
      const bool chosen = (address.family() == AF_INET6) == (six && rank_ % 2 == 1);
      hold_back(address.to_string(), chosen ? 1 : 0, chosen ? stage : kNever);
    }
  }

  Store& store_;
  std::string prefix_;
  int rank_;
  std::map<int, std::string> first_addresses_;  // rank -> key
};

/// Makes and checks a sum. Returns the error, or "". `more`: by an element of the sum, rank 0 announces another one.
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

/// Sums until the end, and publishes counters of this process.
std::string sum_until_end(Communicator& communicator, SharedState& state) {
  SharedState::Rank& own = state.ranks[static_cast<std::size_t>(communicator.rank())];
  bool more = true;
  for (int call = 0; more; ++call) {
    more = !state.over;
    if (std::string wrong = sum(communicator, call, &more); !wrong.empty()) return "first communicator: " + wrong;
    own.refused = refusals().count;
    if (call % 16 == 0) own.heap_bytes = static_cast<long>(::mallinfo2().uordblks);
    ++own.sums;
  }
  return {};
}

}  // namespace

std::string listener_key(const std::string& communicator, const std::string& plane, int rank) {
  return "published/" + communicator + plane + "/" + std::to_string(rank);
}

std::string rank_body(int rank, int port, SharedState& state, std::chrono::milliseconds time_limit) {
  SharedState::Rank& own = state.ranks[static_cast<std::size_t>(rank)];
  record_connections(state);
  auto store = make_tcp_store("127.0.0.1", port, rank == 0, kJob, Clock::now() + time_limit);
  if (!store.ok()) return store.status().to_string();
  CommunicatorOptions options;
  options.timeout = time_limit;
  PrefixedStore first_part(**store, kFirst, rank);
  auto first = Communicator::create(first_part, rank, kRanks, options);
  if (!first.ok()) return "first: " + first.status().to_string();
  std::string wrong;
  std::thread worker([&] { wrong = sum_until_end(**first, state); });

  own.pid = ::getpid();
  PrefixedStore second_part(**store, kSecond, rank);
  auto second = Communicator::create(second_part, rank, kRanks, options);
  std::string wrong_second = second.ok() ? "" : "second: " + second.status().to_string();
  bool more = true;
  for (int call = 0; more && wrong_second.empty(); ++call) {
    more = !state.over;
    wrong_second = sum(**second, call, &more);
    if (call == kSumsOfSecond && wrong_second.empty()) own.second_works = true;
  }
  if (!wrong_second.empty()) state.over = true;
  worker.join();
  if (!wrong.empty()) return wrong;
  if (!wrong_second.empty()) return "second communicator: " + wrong_second;
  if (tcp::repairs().connections != 0) return "the job lost connections";
  if ((*second)->barrier().code() != StatusCode::ok) return "the last barrier failed";
  return {};
}

}  // namespace shoal::hostile
