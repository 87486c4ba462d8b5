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
#include "src/join/rank_names.h"
#include "src/join/socket.h"
#include "src/join/startup_exchange.h"
#include "src/join/startup_watch.h"
#include "src/join/store_client.h"
#include "src/join/store_protocol.h"
#include "src/join/tcp_store_server.h"
#include "src/join/text_list.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFirstRetry = std::chrono::milliseconds(5);  // of a client whose connection was closed in the handshake
constexpr auto kLastRetry = std::chrono::milliseconds(200);

class TcpStore final : public Store {
 public:
  TcpStore(std::unique_ptr<TcpStoreServer> server, const std::string& host, int port, std::string_view job, const Key& key)
      : server_(std::move(server)), host_(host), port_(port), job_(job), key_(key), where_(host_and_port(host, port)) {}

  Status set(std::string_view key, std::string_view value) override {
    if (key.size() > kMaxStoreKeyBytes || value.size() > kMaxStoreValueBytes) {
      return {StatusCode::invalid_argument,
              fmt::format("store: key of {} or value of {} bytes is too long", key.size(), value.size())};
    }
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

  /// Connects where there is no connection. Errors: those of connect_to and introduce_to_store.
  Status connect(Clock::time_point deadline) {
    if (!lost_.ok() || connection_) return lost_;
    if (reached_) deadline = std::min(deadline, Clock::now() + kReturnPatience);  // a server that no longer listens has ended
    for (auto pause = kFirstRetry;; pause = std::min(2 * pause, kLastRetry)) {
      auto socket = connect_to(host_, port_, deadline);
      if (!socket.ok()) return {socket.status().code(), "rank 0's store cannot be reached: " + socket.status().message()};
      auto made = introduce_to_store(std::move(socket).value(), job_, key_, random_nonce(), where_, deadline);
      if (made.ok()) {
        connection_.emplace(std::move(made).value());
        reached_ = true;
        return member_ ? connection_->enter(*member_, deadline) : Status();
      }
      const Status& status = made.status();
      // A server that is flooded with unauthenticated connections may have dropped this one.
      const bool closed = status.code() == StatusCode::peer_failed || status.code() == StatusCode::system_error;
      if (!closed || Clock::now() + pause >= deadline) return status;
      ::poll(nullptr, 0, static_cast<int>(pause.count()));
    }
  }

 private:
  static constexpr auto kAnswerPatience = std::chrono::seconds(60);
  static constexpr auto kReturnPatience = std::chrono::seconds(5);
  static Clock::time_point in_time() { return Clock::now() + kAnswerPatience; }
  static std::uint64_t random_number() {
    std::random_device device;
    return device() | static_cast<std::uint64_t>(device()) << 32;
  }
  static std::string quoted(std::string_view key) { return fmt::format("key '{}'", key); }

  Result<std::string> ask(std::uint32_t rank, std::string_view key, Clock::time_point deadline) {
    if (key.size() > kMaxStoreKeyBytes) {
      return Status(StatusCode::invalid_argument, fmt::format("store: key of {} bytes is too long", key.size()));
    }
    const Status status = connect(deadline);
    if (!status.ok()) return explain(status, quoted(key));
    auto value = connection_->ask(rank, key, deadline);
    if (!value.ok()) return explain(value.status(), quoted(key));
    if (Status bad = status_of(*value); !bad.ok()) return bad;
    return std::move(value->value);
  }

  [[nodiscard]] Status status_of(const StoreConnection::News& news) const {
    if (news.conflict) return {StatusCode::mismatch, news.value};
    if (news.given_up) return {StatusCode::aborted, news.value};
    if (news.died == kStoreNoRank) return {};
    return {StatusCode::peer_failed,
            fmt::format("rank {} died, or lost its connection to rank 0's store at {}", news.died, where_)};
  }

  // A late answer would be taken for the answer to the next request, so a call that has failed ends the connection. After a
  // timeout the next call makes a new connection; after any other error every later call fails with that error.
  [[nodiscard]] Status explain(const Status& status, const std::string& what) {
    if (status.ok()) return status;
    const bool comes_again = status.code() == StatusCode::timeout;
    if (comes_again && member_ && connection_) static_cast<void>(connection_->leave(Clock::now()));
    connection_.reset();
    if (!comes_again) lost_ = status;
    return {status.code(), fmt::format("rank 0's store at {}, {}: {}", where_, what, status.message())};
  }

  std::unique_ptr<TcpStoreServer> server_;  // on the rank that serves the store
  std::string host_;
  int port_;
  std::string job_;
  Key key_;
  std::string where_;
  std::optional<StoreConnection> connection_;
  std::optional<StoreMember> member_;  // this process, while it has entered
  std::uint64_t client_ = random_number();
  bool reached_ = false;
  Status lost_;
};

Status check_job(std::string_view job) {
  if (job.size() <= kMaxStoreJobBytes) return {};
  return {StatusCode::invalid_argument,
          fmt::format("store: the job's name has {} bytes, more than {}", job.size(), kMaxStoreJobBytes)};
}

Result<std::unique_ptr<Store>> connect_store(std::unique_ptr<TcpStoreServer> server, const std::string& host, int port,
                                             std::string_view job, const Key& key, Clock::time_point deadline) {
  auto store = std::make_unique<TcpStore>(std::move(server), host, port, job, key);
  if (Status status = store->connect(deadline); !status.ok()) return status;
  return std::unique_ptr<Store>(std::move(store));
}

// For a rank 0 that cannot listen. Another process of this job that is rank 0, too, may serve the store: then this process
// enters there, so that every rank learns which two processes are rank 0. Or the store of another job uses the port: then the
// error names that job.
Result<std::unique_ptr<Store>> other_rank_0(const std::string& host, int port, std::string_view job, const Key& key,
                                            Clock::time_point deadline, const Status& why) {
  constexpr auto kTimeLimit = std::chrono::seconds(2);
  auto store = connect_store(nullptr, host, port, job, key, std::min(deadline, Clock::now() + kTimeLimit));
  if (store.ok()) return store;
  const bool of_another_job = store.status().code() == StatusCode::invalid_argument;
  return of_another_job ? Status(why.code(), fmt::format("{}; {}", why.message(), store.status().message())) : why;
}

}  // namespace

Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              const Key& key, Clock::time_point deadline) {
  if (Status status = check_job(job); !status.ok()) return status;
  if (port < 1 || port > 65535) return Status(StatusCode::invalid_argument, fmt::format("store: {} is not a port", port));
  std::unique_ptr<TcpStoreServer> server;
  if (is_server) {
    auto served = TcpStoreServer::start(host, port, job, key);
    if (!served.ok()) return other_rank_0(host, port, job, key, deadline, served.status());
    server = std::move(served).value();
  }
  return connect_store(std::move(server), host, port, job, key, deadline);
}

Result<ServedStore> serve_tcp_store(const std::string& host, std::string_view job, const Key& key, Clock::time_point deadline) {
  if (Status status = check_job(job); !status.ok()) return status;
  auto served = TcpStoreServer::start(host, 0, job, key);
  if (!served.ok()) return served.status();
  const int port = (*served)->port();
  auto store = connect_store(std::move(served).value(), host, port, job, key, deadline);
  if (!store.ok()) return store.status();
  return ServedStore{std::move(store).value(), port};
}

Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              Clock::time_point deadline) {
  const auto key = job_key();
  if (!key.ok()) return key.status();
  return make_tcp_store(host, port, is_server, job, key->key, deadline);
}

}  // namespace shoal
