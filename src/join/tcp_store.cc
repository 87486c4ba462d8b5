// A Store that rank 0's process serves over TCP, in a thread of its own for as long as the Store lives. store_protocol.h
// describes the protocol.
#include "src/join/tcp_store.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "src/join/job_key.h"
#include "src/join/keeper_socket.h"
#include "src/join/rank_names.h"
#include "src/join/socket.h"
#include "src/join/startup_exchange.h"
#include "src/join/startup_watch.h"
#include "src/join/store_client.h"
#include "src/join/store_protocol.h"
#include "src/join/tcp_store_server.h"
#include "src/join/text_list.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFirstRetry = std::chrono::milliseconds(5);  // of a client whose connection was closed in the handshake
constexpr auto kLastRetry = std::chrono::milliseconds(200);

std::uint64_t random_number() {
  std::random_device device;
  return device() | static_cast<std::uint64_t>(device()) << 32;
}

// Connects to the store that rank 0 serves. `again`: it has been reached before.
Result<StoreConnection> reach_store(const StoreAddress& address, Clock::time_point deadline, bool again) {
  const std::string where = host_and_port(address.host, address.port);
  for (auto pause = kFirstRetry;; pause = std::min(2 * pause, kLastRetry)) {
    auto socket = connect_to(address.host, address.port, deadline, again);
    if (!socket.ok()) return Status(socket.status().code(), "rank 0's store cannot be reached: " + socket.status().message());
    auto made = introduce_to_store(std::move(socket).value(), address.job, address.key, random_nonce(), where, deadline);
    if (made.ok()) return made;
    // A server that is flooded with unauthenticated connections may have dropped this one.
    const StatusCode code = made.status().code();
    const bool closed = code == StatusCode::peer_failed || code == StatusCode::system_error;
    if (!closed || Clock::now() + pause >= deadline) return made;
    ::poll(nullptr, 0, static_cast<int>(pause.count()));
  }
}

class TcpStore final : public Store {
 public:
  TcpStore(std::unique_ptr<TcpStoreServer> server, StoreAddress address)
      : server_(std::move(server)), address_(std::move(address)), where_(host_and_port(address_.host, address_.port)) {}
  ~TcpStore() override {
    connection_.reset();
    // The ranks of this host may not know yet why the start-up has failed. One that has entered and not left counts as dead.
    if (keeper_ != nullptr && !member_) keeper_->await_leaves(Clock::now() + kLeavePatience);
  }

  Status set(std::string_view key, std::string_view value) override {
    if (key.size() > kMaxStoreKeyBytes || value.size() > kMaxStoreValueBytes) {
      return {StatusCode::invalid_argument,
              fmt::format("store: key of {} or value of {} bytes is too long", key.size(), value.size())};
    }
    if (TcpStore* const direct = direct_for(key); direct != nullptr) return direct->set(key, value);
    const auto deadline = in_time();
    Status status = connect(deadline);
    if (status.ok()) status = connection_->tell(key, value, deadline);
    return explain(status, quoted(key));
  }

  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    return ask(kStoreNoRank, key, deadline);
  }

  Result<std::string> get_from(int rank, std::string_view key, Clock::time_point deadline) override {
    return ask(static_cast<std::uint32_t>(rank), key, deadline);
  }

  Result<std::vector<std::string>> gather(const GatherStep& step, std::string_view value, Clock::time_point deadline) override {
    if (value.size() > kMaxStoreValueBytes) {
      return Status(StatusCode::invalid_argument, fmt::format("store: value of {} bytes is too long", value.size()));
    }
    const std::string what = fmt::format("step '{}'", step.name);
    if (Status status = connect(deadline); !status.ok()) return explain(status, what);
    startup_waits_for(fmt::format("all ranks (step '{}')", step.name));
    const auto news = connection_->gather(step, value, deadline);
    if (!news.ok()) return explain(news.status(), what);
    if (Status bad = status_of(*news); !bad.ok()) return bad;
    if (news->missing_count > 0) {
      const std::string missing = missing_ranks(news->missing, news->missing_count, step.size);
      return Status(StatusCode::timeout, fmt::format("{} (rank 0's store at {})", missing, where_));
    }
    auto values = split_texts(news->value, static_cast<std::size_t>(step.size));
    if (!values) return explain(no_store(), what);
    if (step.last) {  // the server takes the end of the connection for a leave
      connection_->end();
      connection_.reset();
      member_.reset();
    }
    return *std::move(values);
  }

  /// kGivenUp reaches every rank that waits for a step.
  Status refuse(const GatherStep& /*step*/, std::string_view /*why*/) override { return {}; }

  Status enter(int rank, int size) override {
    leave();
    member_ = StoreMember{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size), client_, process_name()};
    const bool new_connection = !connection_;
    const auto deadline = in_time();
    Status status = connect(deadline);
    if (status.ok() && !new_connection) status = connection_->enter(*member_, deadline);
    return explain(status, "joining");
  }

  void leave() override {
    // If the message cannot be sent, the server sees that the connection has ended.
    if (member_ && connection_) static_cast<void>(connection_->leave(in_time()));
    member_.reset();
  }

  Status look(Clock::time_point deadline) override {
    if (Status status = connect(deadline); !status.ok()) return explain(status, "checking for failures");
    if (member_ && !connection_->has_news()) return {};
    const auto news = connection_->look(deadline);
    return news.ok() ? status_of(*news) : explain(news.status(), "checking for failures");
  }

  [[nodiscard]] std::vector<int> absent(int size) const override {
    return server_ != nullptr ? server_->absent(size) : std::vector<int>();
  }

  /// Connects where there is no connection. Errors: those of reach_store() and reach_keeper().
  Status connect(Clock::time_point deadline) {
    if (!lost_.ok() || connection_) return lost_;
    if (reached_) deadline = std::min(deadline, Clock::now() + kReturnPatience);  // its host may not answer
    auto made = kept_by_ ? reach_keeper(kept_by_->socket_name, address_, deadline) : reach_store(address_, deadline, reached_);
    if (!made.ok()) return made.status();
    connection_.emplace(std::move(made).value());
    reached_ = true;
    return member_ ? connection_->enter(*member_, deadline) : Status();
  }

  /// Meets the other ranks of this host at their keeper, which may be this rank. No effect where that is not possible.
  Status meet(const LocalRanks& ranks, Clock::time_point deadline) {
    const int group = ranks.local_rank / kMostKept;
    const int expected = std::min(ranks.local_size - group * kMostKept, kMostKept);
    const std::string name = keeper_socket_name(address_, group);
    // A keeper that does not get through leaves the others the time to connect themselves.
    const auto now = Clock::now();
    auto meeting = meet_at_keeper(name, address_, now + (deadline - now) / 2);
    if (meeting.listener.valid()) {
      auto connection = reach_store(address_, deadline, false);
      if (!connection.ok()) return connection.status();
      const StoreMember self{static_cast<std::uint32_t>(ranks.rank), static_cast<std::uint32_t>(ranks.size), client_,
                             process_name()};
      if (Status status = connection->keep(self, deadline); !status.ok()) return explain(status, "joining");
      auto keeper = TcpStoreServer::keep(
          {std::move(meeting.listener), std::move(connection).value(), ranks.rank, static_cast<std::size_t>(expected)},
          address_.job, address_.key);
      if (!keeper.ok()) return keeper.status();
      keeper_ = std::move(keeper).value();
      auto own = reach_keeper(name, address_, deadline);
      if (!own.ok()) return own.status();
      meeting.connection.emplace(std::move(own).value());
    }
    if (!meeting.connection) return {};
    const auto keeper = meeting.connection->ask(kStoreNoRank, kKeeperKey, deadline);
    const auto rank = keeper.ok() ? parse_bytes(keeper->value) : Result<std::uint64_t>(keeper.status());
    if (!rank.ok() || *rank >= static_cast<std::uint64_t>(ranks.size)) return {};
    kept_by_ = {name, static_cast<int>(*rank)};
    connection_.emplace(*std::move(meeting.connection));
    reached_ = true;
    if (keeper_ == nullptr) where_ += fmt::format(", through rank {}", *rank);
    return {};
  }

 private:
  static constexpr auto kAnswerPatience = std::chrono::seconds(60);
  static constexpr auto kReturnPatience = std::chrono::seconds(5);
  static constexpr auto kLeavePatience = std::chrono::seconds(1);
  static Clock::time_point in_time() { return Clock::now() + kAnswerPatience; }
  static std::string quoted(std::string_view key) { return fmt::format("key '{}'", key); }

  Result<std::string> ask(std::uint32_t rank, std::string_view key, Clock::time_point deadline) {
    if (key.size() > kMaxStoreKeyBytes) {
      return Status(StatusCode::invalid_argument, fmt::format("store: key of {} bytes is too long", key.size()));
    }
    if (TcpStore* const direct = direct_for(key); direct != nullptr) return direct->ask(rank, key, deadline);
    const Status status = connect(deadline);
    if (!status.ok()) return explain(status, quoted(key));
    auto value = connection_->ask(rank, key, deadline);
    if (!value.ok()) return explain(value.status(), quoted(key));
    if (Status bad = status_of(*value); !bad.ok()) return bad;
    return std::move(value->value);
  }

  /// A keeper passes on steps and kGivenUp. Other values are few, as those after the keeper's death: they take a connection to
  /// rank 0's store.
  TcpStore* direct_for(std::string_view key) {
    if (!kept_by_ || (key == kGivenUp && lost_.ok())) return nullptr;
    if (direct_ == nullptr) {
      direct_ = std::make_unique<TcpStore>(nullptr, address_);
      direct_->reached_ = true;
      if (store_has_ended_) direct_->lost_ = lost_;
    }
    return direct_.get();
  }

  [[nodiscard]] Status status_of(const StoreConnection::News& news) {
    if (news.conflict) return {StatusCode::mismatch, news.value};
    if (news.given_up) return {StatusCode::aborted, news.value};
    if (news.died == kStoreNoRank) return {};
    Status death = death_of(static_cast<int>(news.died));
    if (kept_by_ && news.died == 0) lost_to(death, 0);
    return death;
  }
  [[nodiscard]] Status death_of(int rank) const {
    return {StatusCode::peer_failed, fmt::format("rank {} died, or lost its connection to rank 0's store at {}", rank, where_)};
  }
  /// No later call gets through to the keeper, nor to the store if rank 0 has died.
  void lost_to(const Status& death, int rank) {
    lost_ = death;
    store_has_ended_ = rank == 0;
  }

  // A late answer would be taken for the answer to the next request, so a call that has failed ends the connection. After a
  // timeout the next call makes a new connection; after any other error every later call fails with that error.
  [[nodiscard]] Status explain(const Status& status, const std::string& what) {
    if (status.ok()) return status;
    const bool comes_again = status.code() == StatusCode::timeout;
    if (comes_again && member_ && connection_) static_cast<void>(connection_->leave(Clock::now()));
    connection_.reset();
    if (kept_by_ && status.code() == StatusCode::peer_failed) {
      if (lost_.ok()) lost_to(death_of(kept_by_->rank), kept_by_->rank);
      return lost_;
    }
    if (!comes_again) lost_ = status;
    return {status.code(), fmt::format("rank 0's store at {}, {}: {}", where_, what, status.message())};
  }

  struct Keeper {
    std::string socket_name;
    int rank;
  };
  std::unique_ptr<TcpStoreServer> server_;  // on the rank that serves the store
  std::unique_ptr<TcpStoreServer> keeper_;  // on a keeper
  StoreAddress address_;
  std::string where_;
  std::optional<Keeper> kept_by_;
  std::unique_ptr<TcpStore> direct_;
  std::optional<StoreConnection> connection_;
  std::optional<StoreMember> member_;  // this process, while it has entered
  std::uint64_t client_ = random_number();
  bool reached_ = false;
  bool store_has_ended_ = false;  // with rank 0, as a keeper has reported
  Status lost_;
};

Status check_job(std::string_view job) {
  if (job.size() <= kMaxStoreJobBytes) return {};
  return {StatusCode::invalid_argument,
          fmt::format("store: the job's name has {} bytes, more than {}", job.size(), kMaxStoreJobBytes)};
}

Result<std::unique_ptr<Store>> connect_store(std::unique_ptr<TcpStoreServer> server, const StoreAddress& address,
                                             Clock::time_point deadline) {
  return open_tcp_store(std::move(server), address, {}, false, deadline);
}

// For a rank 0 that cannot listen. Another process of this job that is rank 0, too, may serve the store: then this process
// enters there, so that every rank learns which two processes are rank 0. Or the store of another job uses the port: then the
// error names that job.
Result<std::unique_ptr<Store>> other_rank_0(const StoreAddress& address, Clock::time_point deadline, const Status& why) {
  constexpr auto kTimeLimit = std::chrono::seconds(2);
  auto store = connect_store(nullptr, address, std::min(deadline, Clock::now() + kTimeLimit));
  if (store.ok()) return store;
  const bool of_another_job = store.status().code() == StatusCode::invalid_argument;
  return of_another_job ? Status(why.code(), fmt::format("{}; {}", why.message(), store.status().message())) : why;
}

}  // namespace

Result<std::unique_ptr<Store>> open_tcp_store(std::unique_ptr<TcpStoreServer> server, const StoreAddress& address,
                                              const LocalRanks& ranks, bool meets, Clock::time_point deadline) {
  if (Status status = check_job(address.job); !status.ok()) return status;
  auto store = std::make_unique<TcpStore>(std::move(server), address);
  if (meets && ranks.local_size > 1) {
    if (Status status = store->meet(ranks, deadline); !status.ok()) return status;
  }
  if (Status status = store->connect(deadline); !status.ok()) return status;
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<Store>> make_tcp_store(const StoreAddress& address, bool is_server, const LocalRanks& ranks, bool meets,
                                              Clock::time_point deadline) {
  if (Status status = check_job(address.job); !status.ok()) return status;
  if (address.port < 1 || address.port > 65535)
    return Status(StatusCode::invalid_argument, fmt::format("store: {} is not a port", address.port));
  std::unique_ptr<TcpStoreServer> server;
  if (is_server) {
    auto served = TcpStoreServer::start(address.host, address.port, address.job, address.key);
    if (!served.ok()) return other_rank_0(address, deadline, served.status());
    server = std::move(served).value();
  }
  return open_tcp_store(std::move(server), address, ranks, meets, deadline);
}

Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              const Key& key, Clock::time_point deadline) {
  return make_tcp_store({host, port, std::string(job), key}, is_server, {}, false, deadline);
}

Result<ServedStore> serve_tcp_store(const std::string& host, std::string_view job, const Key& key, Clock::time_point deadline) {
  StoreAddress address{host, 0, std::string(job), key};
  if (Status status = check_job(job); !status.ok()) return status;
  auto served = TcpStoreServer::start(host, 0, job, key);
  if (!served.ok()) return served.status();
  address.port = (*served)->port();
  auto store = connect_store(std::move(served).value(), address, deadline);
  if (!store.ok()) return store.status();
  return ServedStore{std::move(store).value(), address.port};
}

Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              Clock::time_point deadline) {
  const auto key = job_key();
  if (!key.ok()) return key.status();
  return make_tcp_store(host, port, is_server, job, key->key, deadline);
}

}  // namespace shoal
