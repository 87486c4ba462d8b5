// The store that rank 0 serves, and bare clients of it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "src/join/socket.h"
#include "src/join/store_session.h"
#include "src/join/tcp_store.h"
#include "tests/unit/stores.h"

namespace shoal {

inline constexpr const char* kHost = "127.0.0.1";

/// A server on a free port, and connections to it.
class StoreServer : public ::testing::Test {
 protected:
  StoreServer() : port_(free_port(kHost).value()) {}

  Result<std::unique_ptr<Store>> make(bool server, const std::string& job = "job",
                                      Clock::duration time_limit = kTimeLimit) const {
    return make_tcp_store(kHost, port_, server, job, in(time_limit));
  }
  [[nodiscard]] StoreFactory factory() {
    return [this] {
      auto store = make(!std::exchange(served_, true));
      EXPECT_TRUE(store.ok()) << store.status().to_string();
      return store.ok() ? std::move(*store) : nullptr;
    };
  }
  /// A bare connection without a handshake.
  [[nodiscard]] Descriptor dial() const {
    auto socket = connect_to(kHost, port_, in(kTimeLimit));
    EXPECT_TRUE(socket.ok()) << socket.status().to_string();
    return socket.ok() ? std::move(*socket) : Descriptor();
  }
  static void say(const Descriptor& socket, const std::string& bytes) {
    static_cast<void>(send_all(socket.get(), bytes.data(), bytes.size(), in(milliseconds(200))));
  }
  /// Whether the server closes this connection, possibly after an answer.
  static bool is_closed(const Descriptor& socket) {
    char byte = 0;
    Status status;
    while (status.ok()) status = receive_all(socket.get(), &byte, 1, in(kTimeLimit));
    return status.code() != StatusCode::timeout;
  }
  static void expect_service(Store& one, Store& other, const std::string& key) {
    ASSERT_TRUE(one.set(key, "value").ok());
    const auto got = other.get(key, in(kTimeLimit));
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, "value");
  }

  int port_;
  bool served_ = false;
};

inline const Key kNoKey = key_from_text("");  // the key of an environment without SHOAL_JOB_KEY

inline std::string number(std::uint32_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
inline std::string block(const std::string& bytes) { return number(static_cast<std::uint32_t>(bytes.size())) + bytes; }
inline std::string hello(std::uint32_t version, const std::string& job) { return store_hello(job, Nonce{}, version); }

/// The bytes of a client's handshake, and the cipher for its records.
struct Entered {
  std::string said;
  RecordCipher cipher;

  [[nodiscard]] std::string sealed(const std::string& text) {
    std::string records;
    append_sealed(records, cipher, text);
    return records;
  }
};

/// Makes the client's part of the handshake with `key`; nullopt if the server refuses.
inline std::optional<Entered> enter(const Descriptor& socket, const std::string& job, const Key& key, bool prove_it = true) {
  const Nonce mine{};
  const std::string words = store_hello(job, mine);
  const std::string expected = '\x03' + block(job);
  std::string answer(expected.size(), '\0');
  Nonce theirs;
  Proof proof;
  if (!send_all(socket.get(), words.data(), words.size(), in(kTimeLimit)).ok() ||
      !receive_all(socket.get(), answer.data(), answer.size(), in(kTimeLimit)).ok() || answer != expected ||
      !receive_all(socket.get(), theirs.data(), theirs.size(), in(kTimeLimit)).ok() ||
      !receive_all(socket.get(), proof.data(), proof.size(), in(kTimeLimit)).ok()) {
    return std::nullopt;
  }
  const Proof own = store_client_proof(key, job, mine, theirs);
  if (prove_it && !send_all(socket.get(), own.data(), own.size(), in(kTimeLimit)).ok()) return std::nullopt;
  return Entered{words + std::string(as_text(own)), store_cipher(key, job, mine, theirs, true)};
}

}  // namespace shoal
