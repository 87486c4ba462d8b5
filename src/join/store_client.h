// The client's side of the protocol of a TCP store (store_protocol.h), on a connected socket.
//
// Answers are not trusted: they may come from any process until the server has proven that it holds the job's key, and their
// sizes are checked after that, too. Errors: timeout at the deadline; peer_failed or system_error where the connection ends, or
// delivers bytes that the server did not send. After an error the connection is unusable.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <shoal/status.h>
#include <shoal/store.h>

#include "src/base/descriptor.h"
#include "src/join/store_protocol.h"
#include "src/trust/proof.h"
#include "src/trust/record_cipher.h"

namespace shoal {

using StoreDeadline = std::chrono::steady_clock::time_point;

/// A connection to an authenticated store. One thread at a time.
class StoreConnection {
 public:
  /// Sets `key` to `value`. At most kMaxStoreKeyBytes and kMaxStoreValueBytes.
  Status tell(std::string_view key, std::string_view value, StoreDeadline deadline);
  /// The answer to a request: the value of the key, or what has happened to other ranks.
  struct News {
    std::string value;  ///< of the key; or of all ranks, as join_texts() makes it; or the value of Store::kGivenUp; or the
                        ///< reason of the conflict
    std::uint32_t died = kStoreNoRank;  ///< a rank that has died
    bool given_up = false;              ///< a rank has aborted
    bool conflict = false;              ///< the ranks cannot belong to one job
    std::vector<int> missing{};         ///< some of the ranks that are missing in a step at its deadline
    std::size_t missing_count = 0;      ///< of all of them
  };
  /// The value of `key`, as soon as it is set. `rank`: the rank that sets it; with kStoreNoRank no failure is reported.
  Result<News> ask(std::uint32_t rank, std::string_view key, StoreDeadline deadline);
  /// Gives the value for `step`. The answer has the values of all ranks, or what keeps them from coming; at the deadline, the
  /// ranks that are missing. At most kMaxStoreValueBytes.
  Result<News> gather(const GatherStep& step, std::string_view value, StoreDeadline deadline);
  /// Whether the server has told since the last look that it would have an answer, or the connection has ended. Does not wait.
  /// Precondition: entered, and no request is in progress.
  bool has_news();
  /// The failures so far, without waiting.
  Result<News> look(StoreDeadline deadline);
  /// Registers `member` until leave(). If the connection ends before that, other ranks get the news that the member has died.
  Status enter(const StoreMember& member, StoreDeadline deadline);
  /// As enter(), for a keeper, which then uses the connection by a StoreRelay.
  Status keep(const StoreMember& member, StoreDeadline deadline);
  /// The parts of this connection, which is unusable afterwards. Precondition: no request is in progress.
  std::pair<Descriptor, RecordCipher> release() { return {std::move(socket_), std::move(cipher_)}; }
  Status leave(StoreDeadline deadline);
  /// The server sees the end of the connection, even if a child of fork() has a copy of the socket.
  void end();

 private:
  friend Result<StoreConnection> introduce_to_store(Descriptor socket, std::string_view job, const Key& key, const Nonce& nonce,
                                                    const std::string& where, StoreDeadline deadline);
  StoreConnection(Descriptor socket, RecordCipher cipher) : socket_(std::move(socket)), cipher_(std::move(cipher)) {}
  Status send(std::string_view text, StoreDeadline deadline);
  Result<News> receive_reason(std::uint32_t kind, StoreDeadline deadline);
  Result<std::string> receive_value(std::uint32_t length, StoreDeadline deadline);
  Status receive_number(std::uint32_t& number, StoreDeadline deadline);
  Result<News> receive_missing(StoreDeadline deadline);
  Status await_answer(StoreDeadline deadline);
  Status await_text(StoreDeadline deadline);
  Status receive(void* data, std::size_t bytes, StoreDeadline deadline);
  Status receive_record(StoreDeadline deadline);

  Descriptor socket_;
  RecordCipher cipher_;
  std::string opened_;  // decrypted text that has not been read yet
  bool news_ = false;   // kStoreNews has come since the last look
};

/// The error where a server does not follow the protocol.
Status no_store();

/// The handshake. `nonce`: the client's, new for each connection; `where`: the store's address, for messages. Errors besides
/// those above: invalid_argument where the store serves another job, unsupported where its version is another one, mismatch
/// where it does not hold the job's key.
Result<StoreConnection> introduce_to_store(Descriptor socket, std::string_view job, const Key& key, const Nonce& nonce,
                                           const std::string& where, StoreDeadline deadline);

}  // namespace shoal
