#include "src/join/store_protocol.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "src/base/printable.h"

namespace shoal {

void append_number(std::string& out, std::uint32_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }

void append_block(std::string& out, std::string_view bytes) {
  append_number(out, static_cast<std::uint32_t>(bytes.size()));
  out.append(bytes);
}

void append_member(std::string& out, const StoreMember& member) {
  append_number(out, member.rank);
  append_number(out, member.size);
  append_number(out, static_cast<std::uint32_t>(member.client));
  append_number(out, static_cast<std::uint32_t>(member.client >> 32));
  append_block(out, std::string_view(member.process).substr(0, kMaxStoreProcessBytes));
}

std::optional<StoreMember> parse_member(StoreParser& parser) {
  const auto rank = parser.number();
  const auto size = parser.number();
  const auto client = parser.long_number();
  const auto process = client ? parser.block(kMaxStoreProcessBytes) : std::nullopt;
  if (!process) return std::nullopt;
  return StoreMember{*rank, *size, *client, printable(std::string(*process))};
}

std::string store_hello(std::string_view job, const Nonce& nonce, std::uint32_t version) {
  std::string hello;
  append_number(hello, kStoreMagic);
  append_number(hello, version);
  append_block(hello, job);
  hello.append(as_text(nonce));
  return hello;
}

Proof store_server_proof(const Key& key, std::string_view job, const Nonce& client, const Nonce& server) {
  return prove(key, "store server", {job, as_text(client), as_text(server)});
}

Proof store_client_proof(const Key& key, std::string_view job, const Nonce& client, const Nonce& server) {
  return prove(key, "store client", {job, as_text(client), as_text(server)});
}

RecordCipher store_cipher(const Key& key, std::string_view job, const Nonce& client, const Nonce& server, bool is_client) {
  const std::string transcript = store_hello(job, client).append(as_text(server));
  return {derive_sealing_keys(key, "store traffic", transcript, is_client, false), kMaxStoreRecordBytes};
}

void append_sealed(std::string& out, RecordCipher& cipher, std::string_view text) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, cipher.most_bytes());
    cipher.seal(std::as_bytes(std::span(part)));
    out.append(as_text(cipher.outgoing()));
    cipher.sent(cipher.outgoing().size());
    text.remove_prefix(part.size());
  }
}

std::optional<std::size_t> open_sealed(std::string& text, RecordCipher& cipher, std::string_view bytes) {
  const auto room = cipher.room();
  const std::size_t part = std::min(bytes.size(), room.size());
  std::memcpy(room.data(), bytes.data(), part);
  cipher.arrived(part);
  while (const std::size_t length = cipher.waiting_bytes()) {
    const std::size_t before = text.size();
    if (length > cipher.most_bytes()) return std::nullopt;
    text.resize(before + length);
    if (!cipher.open(std::as_writable_bytes(std::span(text)).data() + before)) {
      text.resize(before);
      return std::nullopt;
    }
  }
  return part;
}

}  // namespace shoal
