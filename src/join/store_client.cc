#include "src/join/store_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <shoal/limits.h>

#include "src/base/printable.h"
#include "src/join/rank_names.h"
#include "src/join/socket.h"
#include "src/join/store_protocol.h"
#include "src/join/text_list.h"
#include "src/trust/refusals.h"

namespace shoal {
namespace {

// For the answer to a stop, after the deadline: a server that does not answer by then is lost.
constexpr auto kMissingTimeLimit = std::chrono::seconds(2);
constexpr auto kRestOfNews = std::chrono::milliseconds(100);  // once its first bytes are there

Status send_text(int fd, std::string_view text, StoreDeadline deadline) {
  return send_all(fd, text.data(), text.size(), deadline);
}

}  // namespace

Status no_store() { return {StatusCode::system_error, "it is not a shoal store"}; }

Result<StoreConnection> introduce_to_store(Descriptor socket, std::string_view job, const Key& key, const Nonce& nonce,
                                           const std::string& where, StoreDeadline deadline) {
  const auto no_answer = [&](const Status& status) {
    return Status(status.code(), fmt::format("handshake with the store at {} failed: {}", where, status.message()));
  };
  const int fd = socket.get();
  char answer = 0;
  std::uint32_t length = 0;
  Status status = send_text(fd, store_hello(job, nonce), deadline);
  if (status.ok()) status = receive_all(fd, &answer, 1, deadline);
  if (status.ok()) status = receive_all(fd, &length, sizeof length, deadline);
  std::string other_job(std::min(length, kMaxStoreKeyBytes), '\0');  // another version's job may have a longer name
  if (status.ok()) status = receive_all(fd, other_job.data(), other_job.size(), deadline);
  if (!status.ok()) return no_answer(status);
  if (answer == static_cast<char>(StoreAnswer::other_job)) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("store at {} serves job '{}', not '{}': two jobs use one port; give one of them another port",
                              where, printable(std::move(other_job)), job));
  }
  if (answer != static_cast<char>(StoreAnswer::challenge))
    return Status(StatusCode::unsupported, fmt::format("store at {} runs another version of shoal", where));
  Nonce theirs;
  Proof proof;
  status = receive_all(fd, theirs.data(), theirs.size(), deadline);
  if (status.ok()) status = receive_all(fd, proof.data(), proof.size(), deadline);
  if (status.ok() && !same(proof, store_server_proof(key, job, nonce, theirs))) {
    return Status(StatusCode::mismatch,
                  fmt::format("store at {} does not hold this job's key; start all ranks with the same SHOAL_JOB_KEY or "
                              "SHOAL_JOB_KEY_FILE, or all without",
                              where));
  }
  if (status.ok()) status = send_text(fd, as_text(store_client_proof(key, job, nonce, theirs)), deadline);
  if (!status.ok()) return no_answer(status);
  return StoreConnection(std::move(socket), store_cipher(key, job, nonce, theirs, true));
}

Status StoreConnection::tell(std::string_view key, std::string_view value, StoreDeadline deadline) {
  std::string text = store_request(StoreRequest::set);
  append_block(text, key);
  append_block(text, value);
  std::uint32_t answer = 0;
  Status status = send(text, deadline);
  if (status.ok()) status = receive_number(answer, deadline);
  if (status.ok() && answer != kStoreDone) status = no_store();
  return status;
}

Result<StoreConnection::News> StoreConnection::ask(std::uint32_t rank, std::string_view key, StoreDeadline deadline) {
  std::string text = store_request(StoreRequest::get);
  append_number(text, rank);
  append_block(text, key);
  std::uint32_t length = 0;
  Status status = send(text, deadline);
  if (status.ok()) status = receive_number(length, deadline);
  if (!status.ok()) return status;
  if (rank != kStoreNoRank && length == kStoreRankDied) return News{{}, rank, false};
  if (rank != kStoreNoRank && (length == kStoreGivenUp || length == kStoreConflict)) return receive_reason(length, deadline);
  auto value = receive_value(length, deadline);
  if (!value.ok()) return value.status();
  return News{std::move(value).value(), kStoreNoRank, false};
}

Result<StoreConnection::News> StoreConnection::gather(const GatherStep& step, std::string_view value, StoreDeadline deadline) {
  std::string text = store_request(StoreRequest::gather);
  for (const int number : {step.number, step.size, step.rank, step.last ? 1 : 0})
    append_number(text, static_cast<std::uint32_t>(number));
  append_block(text, value);
  if (Status status = send(text, deadline); !status.ok()) return status;
  if (Status status = await_answer(deadline); status.code() == StatusCode::timeout) {
    // The server answers once: with the values if they have come in the meantime.
    deadline = std::chrono::steady_clock::now() + kMissingTimeLimit;
    if (Status sent = send(store_request(StoreRequest::stop), deadline); !sent.ok()) return sent;
  } else if (!status.ok()) {
    return status;
  }
  std::uint32_t kind = 0;
  if (Status status = receive_number(kind, deadline); !status.ok()) return status;
  if (kind == kStoreGivenUp || kind == kStoreConflict) return receive_reason(kind, deadline);
  if (kind == kStoreMissing) return receive_missing(deadline);
  News news;
  if (kind == kStoreRankDied) {
    if (Status status = receive(&news.died, sizeof news.died, deadline); !status.ok()) return status;
    return news.died < static_cast<std::uint32_t>(step.size) ? Result<News>(news) : no_store();
  }
  std::uint64_t left = 0;
  if (kind != kStoreValues) return no_store();
  if (Status status = receive(&left, sizeof left, deadline); !status.ok()) return status;
  if (left > static_cast<std::uint64_t>(step.size) * (kMaxStoreValueBytes + kMaxTextHeadBytes)) return no_store();
  while (left > 0) {  // memory grows with what has arrived
    const auto part = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, kMaxStoreValueBytes));
    const auto more = receive_value(part, deadline);
    if (!more.ok()) return more.status();
    news.value += *more;
    left -= part;
  }
  return news;
}

Result<StoreConnection::News> StoreConnection::receive_missing(StoreDeadline deadline) {
  std::array<std::uint32_t, 2> counts{};
  if (Status status = receive(counts.data(), sizeof counts, deadline); !status.ok()) return status;
  if (counts[0] == 0 || counts[0] > static_cast<std::uint32_t>(kMaxJobRanks) ||
      counts[1] != std::min<std::uint32_t>(counts[0], kNamedRanks)) {
    return no_store();
  }
  std::array<std::uint32_t, kNamedRanks> ranks{};
  if (Status status = receive(ranks.data(), counts[1] * sizeof ranks[0], deadline); !status.ok()) return status;
  News news;
  news.missing_count = counts[0];
  for (std::size_t i = 0; i < counts[1]; ++i) news.missing.push_back(static_cast<int>(ranks[i] % kMaxJobRanks));
  return news;
}

Result<StoreConnection::News> StoreConnection::look(StoreDeadline deadline) {
  std::uint32_t answer = 0;
  Status status = send(store_request(StoreRequest::look), deadline);
  if (status.ok()) status = receive_number(answer, deadline);
  if (!status.ok()) return status;
  news_ = answer != kStoreNoRank;
  if (answer == kStoreGivenUp || answer == kStoreConflict) return receive_reason(answer, deadline);
  return News{{}, answer, false};
}

// The reason why a rank has aborted, or why the ranks cannot belong to one job.
Result<StoreConnection::News> StoreConnection::receive_reason(std::uint32_t kind, StoreDeadline deadline) {
  std::uint32_t length = 0;
  if (Status status = receive(&length, sizeof length, deadline); !status.ok()) return status;
  auto value = receive_value(length, deadline);
  if (!value.ok()) return value.status();
  return News{std::move(value).value(), kStoreNoRank, kind == kStoreGivenUp, kind == kStoreConflict};
}

Result<std::string> StoreConnection::receive_value(std::uint32_t length, StoreDeadline deadline) {
  if (length > kMaxStoreValueBytes) return no_store();
  std::string value(length, '\0');
  if (Status status = receive(value.data(), length, deadline); !status.ok()) return status;
  return value;
}

Status StoreConnection::enter(const StoreMember& member, StoreDeadline deadline) {
  std::string text = store_request(StoreRequest::enter);
  append_member(text, member);
  return send(text, deadline);
}

Status StoreConnection::keep(const StoreMember& member, StoreDeadline deadline) {
  std::string text = store_request(StoreRequest::keep);
  append_member(text, member);
  return send(text, deadline);
}

void StoreConnection::end() { ::shutdown(socket_.get(), SHUT_RDWR); }

Status StoreConnection::leave(StoreDeadline deadline) { return send(store_request(StoreRequest::leave), deadline); }

Status StoreConnection::send(std::string_view text, StoreDeadline deadline) {
  std::string records;
  append_sealed(records, cipher_, text);
  return send_text(socket_.get(), records, deadline);
}

// The first number of an answer.
Status StoreConnection::receive_number(std::uint32_t& number, StoreDeadline deadline) {
  if (Status status = await_answer(deadline); !status.ok()) return status;
  return receive(&number, sizeof number, deadline);
}

// Waits for the next answer, and takes the news in front of it.
Status StoreConnection::await_answer(StoreDeadline deadline) {
  for (;;) {
    if (Status status = await_text(deadline); !status.ok()) return status;
    std::uint32_t number = kStoreDone;
    std::memcpy(&number, opened_.data(), std::min(opened_.size(), sizeof number));
    if (number != kStoreNews) return {};
    opened_.erase(0, sizeof number);
    news_ = true;
  }
}

bool StoreConnection::has_news() {
  pollfd ready{socket_.get(), POLLIN, 0};
  while (!news_ && (!opened_.empty() || cipher_.waiting_bytes() > 0 || ::poll(&ready, 1, 0) > 0)) {
    std::uint32_t number = 0;
    const auto soon = std::chrono::steady_clock::now() + kRestOfNews;
    news_ = !receive(&number, sizeof number, soon).ok() || number == kStoreNews;
  }
  return news_;
}

// Waits until receive() finds something.
Status StoreConnection::await_text(StoreDeadline deadline) { return opened_.empty() ? receive_record(deadline) : Status(); }

Status StoreConnection::receive(void* data, std::size_t bytes, StoreDeadline deadline) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    if (Status status = await_text(deadline); !status.ok()) return status;
    const std::size_t part = opened_.copy(next, bytes);
    opened_.erase(0, part);
    next += part;
    bytes -= part;
  }
  return {};
}

// Fills opened_. Precondition: it is empty.
Status StoreConnection::receive_record(StoreDeadline deadline) {
  while (cipher_.waiting_bytes() == 0) {
    const auto got = receive_some(socket_.get(), cipher_.room(), deadline);
    if (!got.ok()) return got.status();
    cipher_.arrived(*got);
  }
  opened_.resize(cipher_.waiting_bytes());
  if (opened_.size() <= cipher_.most_bytes() && cipher_.open(std::as_writable_bytes(std::span(opened_)).data())) return {};
  opened_.clear();
  count_refusal("store", "a record of an answer failed authentication: it was changed in transit");
  return {StatusCode::system_error, "the store's answer failed authentication: it was changed in transit"};
}

}  // namespace shoal
