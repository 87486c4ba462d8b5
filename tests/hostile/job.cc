#include "tests/hostile/job.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/store.h>

#include "src/join/text_list.h"
#include "src/trust/refusals.h"
#include "tests/hostile/connection_hooks.h"
#include "tests/hostile/wait_until.h"
#include "transports/tcp/address.h"
#include "transports/tcp/repairs.h"

namespace shoal::hostile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSumsOfSecond = 100;  // then the second communicator counts as working

/// The texts that ranks contribute to a step of the start-up, by rank. Of the first step: a rank's node, its cores, whether its
/// peers see its end, and the configuration. Of the second: the addresses of its control links, shared memory and network, how
/// many connections it may open, and the algorithms of the usual calls.
using TextsOfRanks = std::map<int, std::vector<std::string>>;
struct Step {
  std::string_view key;
  std::size_t texts;
};
constexpr Step kNodes{"step/0/", 4};
constexpr Step kAddresses{"step/1/", 5};

TextsOfRanks texts_of_ranks(const Step& step, std::string_view key, std::string_view value) {
  TextsOfRanks found;
  const auto add = [&](int rank, std::string_view joined) {
    if (auto texts = split_texts(joined, step.texts)) found[rank] = *std::move(texts);
  };
  if (!key.starts_with(step.key) || !value.starts_with('+')) return found;
  const int rank = std::atoi(std::string(key.substr(key.rfind('/') + 1)).c_str());
  if (rank != 0) {
    add(rank, value.substr(1));
  } else if (const auto all = split_texts(value.substr(std::min(value.find(' '), value.size() - 1) + 1), kRanks)) {
    for (int of = 0; of < kRanks; ++of) add(of, (*all)[static_cast<std::size_t>(of)]);
  }
  return found;
}

/// A store with a key prefix. Gives the isolated rank another node, makes each rank the keeper of a host of its own (as if its
/// peers could not see its end), publishes the listening addresses of this rank, and holds back ranks and connections by stage.
class PrefixedStore final : public Store {
 public:
  PrefixedStore(Store& store, std::string prefix, int rank, const SharedState& state)
      : store_(store), prefix_(std::move(prefix)), rank_(rank), state_(state) {}
  Status set(std::string_view key, std::string_view value) override {
    std::string changed(value);
    if (auto texts = texts_of_ranks(kNodes, key, value)[rank_]; !texts.empty() && rank_ != 0) {
      if (rank_ == kIsolated) texts[0] += "/elsewhere";
      texts[2].clear();
      changed = "+" + join_texts(texts);
    }
    if (const auto texts = texts_of_ranks(kAddresses, key, value)[rank_]; !texts.empty()) {
      for (const std::size_t plane : {0, 1, 2}) {
        if (texts[plane].empty()) continue;
        if (Status status = store_.set(listener_key(prefix_, kPlanes[plane], rank_), texts[plane]); !status.ok()) return status;
      }
    }
    return store_.set(prefix_ + std::string(key), changed);
  }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    auto value = store_.get(prefix_ + std::string(key), deadline);
    if (!value.ok()) return value;
    const auto addresses = texts_of_ranks(kAddresses, key, *value);
    for (const auto& [rank, texts] : addresses) {
      for (const std::size_t plane : {0, 2}) limit_connections(kPlanes[plane], texts[plane]);
    }
    const bool held_back = prefix_ == kSecond && !addresses.empty() && (rank_ == kLate || rank_ == kIsolated);
    const auto may_continue = [&] { return state_.stage >= kData || state_.over || Clock::now() >= deadline; };
    while (held_back && !wait_until(may_continue)) {
    }
    return value;
  }

 private:
  static constexpr std::array<const char*, 3> kPlanes{"control", "shm", "network"};

  // Odd ranks use IPv6 where available. The first connection to a listener passes, so that it is recorded.
  void limit_connections(std::string_view plane, const std::string& value) const {
    const auto addresses = tcp::split_addresses(value);
    if (!addresses.ok()) return;  // this rank has none
    bool six = false;
    for (const auto& address : *addresses) six |= address.family() == AF_INET6;
    const int stage = prefix_ == kSecond && plane == "network" ? kOpen : 0;
    for (const auto& address : *addresses) {
      const bool chosen = (address.family() == AF_INET6) == (six && rank_ % 2 == 1);
      hold_back(address.to_string(), chosen ? 1 : 0, chosen ? stage : kNever);
    }
  }

  Store& store_;
  std::string prefix_;
  int rank_;
  const SharedState& state_;
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
  PrefixedStore first_part(**store, kFirst, rank, state);
  auto first = Communicator::create(first_part, rank, kRanks, options);
  if (!first.ok()) return "first: " + first.status().to_string();
  std::string wrong;
  std::thread worker([&] { wrong = sum_until_end(**first, state); });

  own.pid = ::getpid();
  PrefixedStore second_part(**store, kSecond, rank, state);
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
