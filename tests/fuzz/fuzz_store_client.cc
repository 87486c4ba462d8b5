// Answers of a store, or of another server at its address, to a client. The first byte: even for a server without the job key;
// odd for one with it, such as a store of a later version or with a bug. Its second bit selects plain text or encrypted
// records. The rest are the answers.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "src/join/store_client.h"
#include "src/join/store_session.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = key_from_text("nobody's");
  if (size == 0 || size > 60'000) return 0;  // capacity of a socket
  const bool has_key = data[0] % 2 == 1;
  const Nonce mine{};
  std::string answers;
  const std::string_view payload(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool encrypts = has_key && (data[0] & 2) == 0;
  if (has_key) {
    const Nonce theirs{};
    answers.push_back(static_cast<char>(StoreAnswer::challenge));
    append_block(answers, "job");
    answers.append(as_text(theirs)).append(as_text(store_server_proof(key, "job", mine, theirs)));
    RecordCipher cipher = store_cipher(key, "job", mine, theirs, false);
    if (encrypts) append_sealed(answers, cipher, payload);
  }
  if (!encrypts) answers.append(payload);

  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  if (::send(ends[1], answers.data(), answers.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(answers.size())) std::abort();
  ::shutdown(ends[1], SHUT_WR);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  auto connection = introduce_to_store(Descriptor(ends[0]), "job", key, mine, "10.0.0.1:1", deadline);
  const Status status = connection.ok() ? Status() : connection.status();
  if (status.ok() != has_key) std::abort();
  for (const unsigned char c : status.message()) {
    if (c < 0x20 || c == 0x7f) std::abort();
  }
  for (int call = 0; call < 8 && has_key; ++call) {
    if (call % 2 == 0) {
      const Status status_of_set = connection->tell("key", "value", deadline);
      if (status_of_set.ok() && !encrypts) std::abort();
    } else {
      const std::uint32_t rank = call % 4 == 1 ? 3 : kStoreNoRank;
      const auto value = connection->ask(rank, "key", deadline);
      if (value.ok() && (value->value.size() > size || !encrypts)) std::abort();
      if (value.ok() && rank == kStoreNoRank && (value->died != kStoreNoRank || value->given_up)) std::abort();
      if (call == 5) {
        const auto all = connection->gather({0, "step", 1, 3, false}, "value", deadline);
        if (all.ok() && (all->value.size() > size || all->missing.size() > size || !encrypts)) std::abort();
      }
      if (call == 7 && connection->look(deadline).ok() && !encrypts) std::abort();
    }
  }
  // The connection was shut down, so no call waits until the deadline.
  if (std::chrono::steady_clock::now() >= deadline) std::abort();
  ::close(ends[1]);
  return 0;
}
