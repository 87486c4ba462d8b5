// Requests of clients to the store. The first byte: odd for a client of the job; second bit set for one that sends plain text
// instead of encrypted records. The rest are pieces of requests, each after its length.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "src/join/store_session.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = key_from_text("nobody's");
  StoreTable table{"job", key, {{"known", "value"}}};
  table.steps.try_emplace(1, 2).first->second.put(1, "of another rank");
  StoreSession session(table);
  if (size == 0) return 0;
  const bool member = data[0] % 2 == 1;
  const bool encrypts = member && (data[0] & 2) == 0;
  std::optional<RecordCipher> cipher;
  if (member) {
    const Nonce mine{};
    session.receive(store_hello("job", mine));
    Nonce theirs;
    std::memcpy(theirs.data(), session.unsent.data() + 1 + 4 + 3, theirs.size());
    session.receive(as_text(store_client_proof(key, "job", mine, theirs)));
    if (!session.trusted()) std::abort();
    cipher.emplace(store_cipher(key, "job", mine, theirs, true));
    session.unsent.clear();
  }
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  while (!rest.empty()) {
    const std::size_t piece = 1 + static_cast<unsigned char>(rest.front()) * 4U;
    rest.remove_prefix(1);
    std::string request(rest.substr(0, piece));
    if (encrypts) append_sealed(request.erase(), *cipher, rest.substr(0, piece));
    session.receive(request);
    rest.remove_prefix(std::min(piece, rest.size()));
  }
  // Without encryption a client changes and reads nothing, and a client that has not entered does not count as dead.
  if (!encrypts && table.values.size() != 1) std::abort();
  session.lost();
  if ((!encrypts && !table.died.empty()) || !table.waiting.empty()) std::abort();
  if (member && !encrypts && (!session.unsent.empty() || (session.over() && session.refused().empty()))) std::abort();
  // All answers decrypt.
  for (session.refill(); encrypts && !session.unsent.empty(); session.refill()) {
    const std::size_t part = std::min(session.unsent.size(), cipher->room().size());
    std::memcpy(cipher->room().data(), session.unsent.data(), part);
    session.unsent.erase(0, part);
    cipher->arrived(part);
    std::array<std::byte, kMaxStoreRecordBytes> text;
    while (const std::size_t bytes = cipher->waiting_bytes()) {
      if (bytes > text.size() || !cipher->open(text.data())) std::abort();
    }
  }
  // A client without the key changes and reads nothing, and is never trusted.
  if (!member && (session.trusted() || table.values.size() != 1 || session.unsent.size() > 1024)) std::abort();
  if (session.over() && !member && session.refused().empty()) std::abort();
  return 0;
}
