// The messages of the rendezvous, and sending and receiving them with descriptors attached.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "transports/shm/process_identity.h"

namespace shoal::shm {

enum class MessageKind : std::uint32_t { hello = 1, late = 2, welcome = 3, member = 4, ready = 5, go = 6, refusal = 7 };

/// One message. All kinds have the same layout, and use the fields that they need. Only processes of one host and one build
/// read it, and the protocol version is checked first.
struct Message {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  MessageKind kind{};
  std::uint64_t job_id = 0;
  std::array<std::byte, 16> secret{};
  std::int32_t rank = 0;           ///< hello: the sender; member: the owner of the pidfd
  std::int32_t code = 0;           ///< refusal: StatusCode
  std::uint32_t has_life = 0;      ///< hello: a pidfd of the sender comes with it
  std::uint32_t members = 0;       ///< welcome: so many messages `member` follow
  ProcessIdentity process;         ///< hello: of the sender
  std::uint64_t ranks_hash = 0;    ///< hello: of the sorted list of ranks
  std::uint64_t tile_bytes = 0;    ///< hello
  std::uint64_t slots = 0;         ///< hello
  std::uint64_t window_bytes = 0;  ///< hello
  std::array<char, 512> text{};    ///< refusal
};
static_assert(std::is_trivially_copyable_v<Message>);

/// A message of this protocol version with nothing else filled in.
Message make_message(MessageKind kind);
Message make_refusal(const Status& status);
/// The reason inside a refusal.
Status refusal_status(const Message& message);
/// The same. A text of the system names no rank, so that of the sender is added.
Status told_by(int rank, const Message& refusal);
/// Hash of the ranks of a group, by which two ranks detect that their lists differ.
std::uint64_t hash_ranks(const std::vector<int>& ranks);

enum class ReceiveOutcome {
  message,
  nothing,
  closed,
  junk,
  no_room,  ///< a message, but this process has no room for the descriptors that came with it: its limit of open files
};

struct Received {
  ReceiveOutcome outcome = ReceiveOutcome::nothing;
  Message message;
  std::vector<Descriptor> descriptors;
};

/// Sends one message with at most one descriptor; false where the peer is gone or its queue is full.
bool send_message(int socket, const Message& message, int descriptor = -1);
/// Receives without blocking. `no_room` has the message and no descriptors. `junk` where the bytes are not a message of this
/// protocol; descriptors that came with it are closed.
Received receive_message(int socket);
/// Milliseconds until `deadline` for poll(2), rounded up, at least 0.
int poll_timeout_ms(std::chrono::steady_clock::time_point deadline);

}  // namespace shoal::shm
