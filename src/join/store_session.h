// The protocol between a TCP store's server and its clients, and the server's side of it: bytes in, bytes out, no sockets.
//
// Little-endian; a block is a 32-bit length and bytes. The handshake:
//   client  magic, version, job (block), nonce
//   server  1 byte: 1 = other job, 2 = other version, 3 = challenge; its job (block); after a challenge: nonce, proof
//   client  proof
// The server authenticates first, so that a client with another key detects and reports it. The client's proof covers both
// nonces.
//
// Everything after the handshake travels in encrypted records (src/trust/record_cipher.h): 32-bit length of the text, at most
// kMaxStoreRecordBytes, the text by ChaCha20-Poly1305, 16 bytes that authenticate both. Each direction has a key of this
// connection, derived from the job's key, the client's hello and the server's nonce; a record's number is its nonce. A record
// that fails authentication ends the connection. The texts of the records form one stream of bytes in each direction,
// independent of the limits of records:
//   client  requests: 1 byte and
//             1 = set: key (block), value (block)
//             2 = get: the rank that sets it (32 bits; kStoreNoRank), key (block)
//             3 = enter: the client's rank (32 bits), the size of its job (32 bits), a random number that is the same for all
//                 connections of this client (64 bits), the name of its process in messages (block)
//             4 = leave: also ends a get that still waits, without an answer
//             5 = look
//   server  to set: 1 byte 0
//           to get: the value (block), when the key exists. In place of its length: kStoreRankDied, when the connection of that
//             rank has ended without a leave; kStoreGivenUp and the value of Store::kGivenUp (block), when the client has
//             entered and that key exists; kStoreConflict and the reason (block), when the client has entered and the ranks
//             cannot belong to one job
//           to look: kStoreConflict as above, else a rank that has died in that way (32 bits), else kStoreGivenUp as above,
//             else kStoreNoRank
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "src/trust/proof.h"
#include "src/trust/record_cipher.h"

namespace shoal {

inline constexpr std::uint32_t kStoreMagic = 0x54534853;  // "SHST"
inline constexpr std::uint32_t kStoreVersion = 5;
inline constexpr std::uint32_t kMaxStoreJobBytes = 256;
inline constexpr std::uint32_t kMaxStoreProcessBytes = 512;
inline constexpr std::uint32_t kMaxStoreKeyBytes = 4096;
inline constexpr std::uint32_t kMaxStoreValueBytes = 1 << 20;
inline constexpr std::size_t kMaxStoreRecordBytes = 4096;
inline constexpr std::uint32_t kStoreNoRank = ~std::uint32_t{0};
inline constexpr std::uint32_t kStoreRankDied = ~std::uint32_t{0};
inline constexpr std::uint32_t kStoreGivenUp = ~std::uint32_t{1};
inline constexpr std::uint32_t kStoreConflict = ~std::uint32_t{2};

enum class StoreAnswer : char { done = 0, other_job = 1, other_version = 2, challenge = 3 };
enum class StoreRequest : char { set = 1, get = 2, enter = 3, leave = 4, look = 5 };

void append_number(std::string& out, std::uint32_t value);
void append_block(std::string& out, std::string_view bytes);
/// The client's first message.
std::string store_hello(std::string_view job, const Nonce& nonce, std::uint32_t version = kStoreVersion);
/// The proofs that the server, and then the client, hold the job's key.
Proof store_server_proof(const Key& key, std::string_view job, const Nonce& client, const Nonce& server);
Proof store_client_proof(const Key& key, std::string_view job, const Nonce& client, const Nonce& server);
/// The cipher for the rest of the connection. `is_client`: this end is the client.
RecordCipher store_cipher(const Key& key, std::string_view job, const Nonce& client, const Nonce& server, bool is_client);
/// Appends `text`, encrypted, in as many records as needed.
void append_sealed(std::string& out, RecordCipher& cipher, std::string_view text);

/// A client that has entered.
struct StoreMember {
  std::uint32_t rank = kStoreNoRank;
  std::uint32_t size = 0;
  std::uint64_t client = 0;  ///< the same for all connections of a client
  std::string process;
};
void append_member(std::string& out, const StoreMember& member);

/// The state of a server for all its clients.
struct StoreTable {
  std::string job;
  Key key;
  std::map<std::string, std::string, std::less<>> values;
  std::set<std::uint32_t> died{};                  ///< ranks that had entered, and whose connections ended without a leave
  std::map<std::uint32_t, StoreMember> members{};  ///< by rank: all that have entered, without those that have died
  std::string conflict{};                          ///< why the members cannot belong to one job; else empty
};

/// One client, from the server's point of view. Thread rule: one thread for a table and all its sessions.
class StoreSession {
 public:
  explicit StoreSession(StoreTable& table) : table_(table) {}

  /// Processes bytes from the client. Memory is limited to one request, a few records, and the answers that the client has not
  /// read. Returns true where other clients' gets may now have an answer.
  bool receive(std::string_view bytes);
  /// Answers a waiting get, if its key exists by now or its rank has died.
  void look_again();
  /// To be called when the connection has ended. Returns true if that is the death of a rank, for which other clients may wait.
  bool lost();

  /// Whether the client has authenticated.
  [[nodiscard]] bool trusted() const noexcept { return state_ == State::trusted; }
  /// Whether the client has not sent its hello yet.
  [[nodiscard]] bool silent() const noexcept { return state_ == State::stranger; }
  /// Whether the connection must be closed: at once if `unsent` is empty, else when `unsent` has been sent.
  [[nodiscard]] bool over() const noexcept { return state_ == State::over; }
  /// Why a client that never authenticated, or whose record failed authentication, was refused; else empty.
  [[nodiscard]] std::string_view refused() const noexcept { return refused_; }

  std::string unsent;  ///< for the client; the owner removes what it has sent

 private:
  enum class State { stranger, challenged, trusted, over };
  std::size_t receive_open(std::string_view bytes);
  std::size_t receive_sealed(std::string_view bytes, bool* set);
  bool handle(bool* set);
  bool handle_hello(std::string_view bytes, std::size_t* taken);
  bool handle_proof(std::string_view bytes, std::size_t* taken);
  bool handle_request(std::string_view bytes, std::size_t* taken, bool* set);
  void enter(StoreMember member);
  [[nodiscard]] bool say_why_given_up();
  [[nodiscard]] bool say_conflict();
  void say_reason(std::uint32_t kind, std::string_view why);
  void say(std::string_view text);
  void say(std::uint32_t number);
  void refuse(std::string_view why);
  void end();

  StoreTable& table_;
  State state_ = State::stranger;
  std::string_view refused_;
  std::string received_;  // bytes that have not been processed yet; of a trusted client, the text of its records
  std::unique_ptr<RecordCipher> cipher_;  // set once the client is trusted
  struct Wanted {
    std::string key;
    std::uint32_t rank;
  };
  std::optional<Wanted> wanted_;       // of a waiting get
  std::optional<std::uint32_t> rank_;  // of a client that has entered and not left
  std::uint64_t client_ = 0;           // of that client
  Nonce theirs_{};
  Nonce mine_{};
};

}  // namespace shoal
