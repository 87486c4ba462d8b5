// The client's side of what a TCP store and its clients say to each other (store_session.h), on a connected socket.
//
// Nothing here trusts the answers: they may be anybody's until the server has proven that it holds the job's key, and are kept
// to their limits after that too. Errors: timeout at the deadline; peer_failed or system_error where the connection ends, or
// brings what the server did not say. After one the connection is of no use.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/join/store_session.h"
#include "src/trust/proof.h"
#include "src/trust/record_cipher.h"

namespace shoal {

using StoreDeadline = std::chrono::steady_clock::time_point;

/// A connection to a store that has proven itself. One thread at a time.
class StoreConnection {
 public:
  /// What `key` holds from now on. At most kMaxStoreKeyBytes and kMaxStoreValueBytes.
  Status tell(std::string_view key, std::string_view value, StoreDeadline deadline);
  /// How a request ended other than by an error: with what was asked for, or because of what has happened to the others.
  struct News {
    std::string value;                  ///< or what Store::kGivenUp holds
    std::uint32_t died = kStoreNoRank;  ///< that rank
    bool given_up = false;              ///< somebody has
    bool conflict = false;              ///< the ranks cannot be of one job; `value` says why
  };
  /// What `key` holds, as soon as it holds anything. `rank`: who sets it, or kStoreNoRank, who neither dies nor gives up.
  Result<News> ask(std::uint32_t rank, std::string_view key, StoreDeadline deadline);
  /// What there is now.
  Result<News> look(StoreDeadline deadline);
  /// That this is `member`, until leave(), or until the connection ends, by which the others hear that it has died.
  Status enter(const StoreMember& member, StoreDeadline deadline);
  Status leave(StoreDeadline deadline);

 private:
  friend Result<StoreConnection> introduce_to_store(Descriptor socket, std::string_view job, const Key& key, const Nonce& nonce,
                                                    const std::string& where, StoreDeadline deadline);
  StoreConnection(Descriptor socket, RecordCipher cipher) : socket_(std::move(socket)), cipher_(std::move(cipher)) {}
  Status send(std::string_view text, StoreDeadline deadline);
  Result<News> receive_reason(std::uint32_t kind, StoreDeadline deadline);
  Result<std::string> receive_value(std::uint32_t length, StoreDeadline deadline);
  Status receive(void* data, std::size_t bytes, StoreDeadline deadline);
  Status receive_record(StoreDeadline deadline);

  Descriptor socket_;
  RecordCipher cipher_;
  std::string opened_;  // text of records that nobody has asked for yet
};

/// The handshake. `nonce`: the client's, new for each connection; `where`: the store's address, for messages. Errors besides
/// those above: invalid_argument where the store serves another job, unsupported where it speaks another version, mismatch
/// where it does not hold the job's key.
Result<StoreConnection> introduce_to_store(Descriptor socket, std::string_view job, const Key& key, const Nonce& nonce,
                                           const std::string& where, StoreDeadline deadline);

}  // namespace shoal
