// The protocol between a TCP store's server and its clients: bytes and their meaning, no sockets.
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
//             4 = leave: also ends a get or a gather that still waits, without an answer
//             5 = look
//             6 = gather: number of the step, size of the job, the client's rank, 1 if the step is the last one, else 0 (32
//                 bits each), value (block)
//             7 = stop: ends a gather that still waits, with an answer
//           and those of a keeper, which speaks for several ranks of its host (store_relay.h); none has an answer but 9, and
//           they are served while a gather waits:
//             8 = keep: as enter; the client's rank is that of the keeper
//             9 = gather for several ranks: number of the step, size of the job, 1 if the step is the last one, else 0, number
//                 of values; for each the rank, size, random number and process as in enter, and the value (block). Later
//                 requests for the same step add values; they have one answer. A rank enters with its first value
//             10 = lost: a rank (32 bits) of the keeper's host has died
//             11 = give up: the value (block) of Store::kGivenUp
//   server  in front of any answer, and when there is none: kStoreNews, once before each look of a client that has entered,
//             when a look would have another answer than kStoreNoRank
//           to set: kStoreDone
//           to get: the value (block), when the key exists. In place of its length: kStoreRankDied, when the connection of that
//             rank has ended without a leave; kStoreGivenUp and the value of Store::kGivenUp (block), when the client has
//             entered and that key exists; kStoreConflict and the reason (block), when the client has entered and the ranks
//             cannot belong to one job
//           to look: kStoreConflict as above, else a rank that has died in that way (32 bits), else kStoreGivenUp as above,
//             else kStoreNoRank
//           to gather, when all ranks of the job have given their values: kStoreValues, a length (64 bits), the values of all
//             ranks (text_list.h). The last step is a leave; rank 0 gets its answer when the connections of all other ranks
//             that have got theirs have ended. Before: kStoreRankDied and a rank of the job that has died (32 bits);
//             kStoreGivenUp and kStoreConflict as above, but kStoreGivenUp also for a client that has not entered; after a stop
//             kStoreMissing, the number of ranks that are missing, how many of them follow, and their ranks (32 bits each)
//           to a keeper, unasked: kStoreConflict, kStoreRankDied and kStoreGivenUp as to gather. They do not end its gather
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/join/store_parser.h"
#include "src/join/store_table.h"
#include "src/trust/proof.h"
#include "src/trust/record_cipher.h"

namespace shoal {

inline constexpr std::uint32_t kStoreMagic = 0x54534853;  // "SHST"
inline constexpr std::uint32_t kStoreVersion = 7;
inline constexpr std::uint32_t kMaxStoreJobBytes = 256;
inline constexpr std::uint32_t kMaxStoreProcessBytes = 512;
inline constexpr std::uint32_t kMaxStoreKeyBytes = 4096;
inline constexpr std::uint32_t kMaxStoreValueBytes = 1 << 20;
inline constexpr std::size_t kMaxStoreRecordBytes = 4096;
inline constexpr std::uint32_t kStoreRankDied = ~std::uint32_t{0};
inline constexpr std::uint32_t kStoreGivenUp = ~std::uint32_t{1};
inline constexpr std::uint32_t kStoreConflict = ~std::uint32_t{2};
inline constexpr std::uint32_t kStoreMissing = ~std::uint32_t{3};
inline constexpr std::uint32_t kStoreNews = ~std::uint32_t{4};
inline constexpr std::uint32_t kStoreDone = 0;
inline constexpr std::uint32_t kStoreValues = 0;

enum class StoreAnswer : char { other_job = 1, other_version = 2, challenge = 3 };
enum class StoreRequest : char {
  set = 1,
  get = 2,
  enter = 3,
  leave = 4,
  look = 5,
  gather = 6,
  stop = 7,
  keep = 8,
  gather_several = 9,
  lost = 10,
  give_up = 11
};

/// The first byte of a request.
inline std::string store_request(StoreRequest kind) { return std::string(1, static_cast<char>(kind)); }
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
/// Takes as many of `bytes` as there is room for, and appends the text of whole records to `text`. Returns how many bytes it
/// has taken; nothing if a record failed authentication, and then `text` has those before it.
std::optional<std::size_t> open_sealed(std::string& text, RecordCipher& cipher, std::string_view bytes);

void append_member(std::string& out, const StoreMember& member);
/// Nothing while it has not arrived whole.
std::optional<StoreMember> parse_member(StoreParser& parser);

}  // namespace shoal
