// The client's side of what a TCP store and its clients say to each other (store_session.h), on a connected socket.
//
// Nothing here trusts the answers: they may be anybody's until the server has proven that it holds the job's key, and are kept
// to their limits after that too. Errors: timeout at the deadline; peer_failed or system_error where the connection ends.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <shoal/status.h>

#include "src/trust/proof.h"

namespace shoal {

using StoreDeadline = std::chrono::steady_clock::time_point;

/// The handshake. `nonce`: the client's, new for each connection; `where`: the store's address, for messages. Errors besides
/// those above: invalid_argument where the store serves another job, unsupported where it speaks another version, mismatch
/// where it does not hold the job's key.
Status introduce_to_store(int fd, std::string_view job, const Key& key, const Nonce& nonce, const std::string& where,
                          StoreDeadline deadline);
/// What `key` holds from now on. At most kMaxStoreKeyBytes and kMaxStoreValueBytes.
Status tell_store(int fd, std::string_view key, std::string_view value, StoreDeadline deadline);
/// What `key` holds, as soon as it holds anything.
Result<std::string> ask_store(int fd, std::string_view key, StoreDeadline deadline);

}  // namespace shoal
