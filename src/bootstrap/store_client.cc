#include "src/bootstrap/store_client.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "src/bootstrap/socket.h"
#include "src/bootstrap/store_session.h"

namespace shoal {
namespace {

Status no_store() { return {StatusCode::system_error, "it is not a shoal store"}; }

Status send_text(int fd, std::string_view text, StoreDeadline deadline) {
  return send_all(fd, text.data(), text.size(), deadline);
}

std::string request(StoreRequest kind, std::string_view key) {
  std::string text(1, static_cast<char>(kind));
  append_block(text, key);
  return text;
}

// For a terminal: whoever answers must not write its own lines or colours there.
std::string without_controls(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

}  // namespace

Status introduce_to_store(int fd, std::string_view job, const Key& key, const Nonce& nonce, const std::string& where,
                          StoreDeadline deadline) {
  const auto no_answer = [&](const Status& status) {
    return Status(status.code(), fmt::format("store at {} does not answer as one: {}", where, status.message()));
  };
  char answer = 0;
  std::uint32_t length = 0;
  Status status = send_text(fd, store_hello(job, nonce), deadline);
  if (status.ok()) status = receive_all(fd, &answer, 1, deadline);
  if (status.ok()) status = receive_all(fd, &length, sizeof length, deadline);
  std::string other_job(std::min(length, kMaxStoreKeyBytes), '\0');  // another version's job may have a longer name
  if (status.ok()) status = receive_all(fd, other_job.data(), other_job.size(), deadline);
  if (!status.ok()) return no_answer(status);
  if (answer == static_cast<char>(StoreAnswer::other_job)) {
    return {StatusCode::invalid_argument,
            fmt::format("store at {} serves job '{}', not '{}': two jobs use one port; give one of them another", where,
                        without_controls(std::move(other_job)), job)};
  }
  if (answer != static_cast<char>(StoreAnswer::challenge))
    return {StatusCode::unsupported, fmt::format("store at {} speaks another version of shoal", where)};
  Nonce theirs;
  Proof proof;
  status = receive_all(fd, theirs.data(), theirs.size(), deadline);
  if (status.ok()) status = receive_all(fd, proof.data(), proof.size(), deadline);
  if (status.ok() && !same(proof, store_server_proof(key, job, nonce, theirs))) {
    return {StatusCode::mismatch,
            fmt::format("store at {} does not hold this job's key; start all ranks with the same SHOAL_JOB_KEY or "
                        "SHOAL_JOB_KEY_FILE, or all without",
                        where)};
  }
  if (status.ok()) status = send_text(fd, as_text(store_client_proof(key, job, nonce, theirs)), deadline);
  return status.ok() ? status : no_answer(status);
}

Status tell_store(int fd, std::string_view key, std::string_view value, StoreDeadline deadline) {
  std::string text = request(StoreRequest::set, key);
  append_block(text, value);
  char answer = 0;
  Status status = send_text(fd, text, deadline);
  if (status.ok()) status = receive_all(fd, &answer, 1, deadline);
  if (status.ok() && answer != static_cast<char>(StoreAnswer::done)) status = no_store();
  return status;
}

Result<std::string> ask_store(int fd, std::string_view key, StoreDeadline deadline) {
  std::uint32_t length = 0;
  Status status = send_text(fd, request(StoreRequest::get, key), deadline);
  if (status.ok()) status = receive_all(fd, &length, sizeof length, deadline);
  if (status.ok() && length > kMaxStoreValueBytes) status = no_store();
  if (!status.ok()) return status;
  std::string value(length, '\0');
  status = receive_all(fd, value.data(), value.size(), deadline);
  if (!status.ok()) return status;
  return value;
}

}  // namespace shoal
