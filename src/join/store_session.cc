#include "src/join/store_session.h"

#include <algorithm>
#include <cstring>
#include <span>

#include <shoal/store.h>

#include "src/base/printable.h"
#include "src/join/startup_exchange.h"

namespace shoal {
namespace {

constexpr std::size_t kMaxPendingBytes = 4 << 20;  // answers that a client has not read
constexpr std::size_t kMaxRequestBytes = kMaxStoreKeyBytes + kMaxStoreValueBytes + 64;
constexpr std::size_t kMaxHelloBytes = kMaxStoreJobBytes + 64;

// Parses fields at the front of the bytes that a client has sent so far. The caller removes them only when a whole message has
// arrived.
class Parser {
 public:
  explicit Parser(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  std::optional<char> byte() {
    if (rest_.empty()) return std::nullopt;
    const char value = rest_.front();
    rest_.remove_prefix(1);
    return value;
  }
  std::optional<std::uint32_t> number() {
    std::uint32_t value = 0;
    if (rest_.size() < sizeof value) return std::nullopt;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  template <typename Array>
  std::optional<Array> array() {
    Array value;
    if (rest_.size() < value.size()) return std::nullopt;
    std::memcpy(value.data(), rest_.data(), value.size());
    rest_.remove_prefix(value.size());
    return value;
  }
  // nullopt: incomplete, or longer than `limit`, which sets hostile().
  std::optional<std::string_view> block(std::uint32_t limit) {
    const auto length = number();
    if (!length) return std::nullopt;
    hostile_ |= *length > limit;
    if (hostile_ || rest_.size() < *length) return std::nullopt;
    const std::string_view bytes = rest_.substr(0, *length);
    rest_.remove_prefix(*length);
    return bytes;
  }
  [[nodiscard]] bool hostile() const { return hostile_; }
  [[nodiscard]] std::size_t taken() const { return size_ - rest_.size(); }

 private:
  std::string_view rest_;
  std::size_t size_;
  bool hostile_ = false;
};

}  // namespace

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

bool StoreSession::receive(std::string_view bytes) {
  bool set = false;
  while (!bytes.empty() && !over()) bytes.remove_prefix(trusted() ? receive_sealed(bytes, &set) : receive_open(bytes));
  return set;
}

// Continues the handshake with `bytes`. Returns how many of them belong to it.
std::size_t StoreSession::receive_open(std::string_view bytes) {
  const std::size_t before = received_.size();
  // An unauthenticated client can make this process store no more than a hello.
  const std::size_t part = std::min(bytes.size(), kMaxHelloBytes - before);
  received_.append(bytes.substr(0, part));
  while (!trusted() && handle(nullptr)) {
  }
  if (!trusted()) return part;
  // The bytes after the proof belong to records already.
  const std::size_t sealed = received_.size();
  received_.clear();
  return part - sealed;
}

// Takes as many of `bytes` as there is room for, and returns how many. Decrypts whole records and processes their requests.
std::size_t StoreSession::receive_sealed(std::string_view bytes, bool* set) {
  const auto room = cipher_->room();
  const std::size_t part = std::min(bytes.size(), room.size());
  std::memcpy(room.data(), bytes.data(), part);
  cipher_->arrived(part);
  while (!over()) {
    const std::size_t length = cipher_->waiting_bytes();
    if (length == 0) break;
    const std::size_t before = received_.size();
    if (before >= kMaxRequestBytes) {  // more than one request at a time
      end();
      break;
    }
    received_.resize(before + length);
    if (length > cipher_->most_bytes() || !cipher_->open(std::as_writable_bytes(std::span(received_)).data() + before)) {
      refused_ = "a record failed authentication: it was changed in transit";
      end();
      break;
    }
    while (handle(set)) {
    }
  }
  return part;
}

// Processes one whole message; returns false if none has arrived.
bool StoreSession::handle(bool* set) {
  if (wanted_ && received_.starts_with(static_cast<char>(StoreRequest::leave))) wanted_.reset();
  if (over() || wanted_) return false;
  std::size_t taken = 0;
  const bool whole = state_ == State::stranger     ? handle_hello(received_, &taken)
                     : state_ == State::challenged ? handle_proof(received_, &taken)
                                                   : handle_request(received_, &taken, set);
  if (unsent.size() > kMaxPendingBytes) refuse("it does not read its answers");
  if (!whole || over()) return false;
  received_.erase(0, taken);
  return true;
}

bool StoreSession::handle_hello(std::string_view bytes, std::size_t* taken) {
  Parser parser(bytes);
  const auto magic = parser.number();
  const auto version = parser.number();
  if (magic && *magic != kStoreMagic) return refuse("it does not speak the store's protocol"), false;
  if (!version) return false;
  const auto job = parser.block(kMaxStoreJobBytes);
  if (parser.hostile()) return refuse("it does not speak the store's protocol"), false;
  if (!job) return false;
  const StoreAnswer answer = *version != kStoreVersion ? StoreAnswer::other_version
                             : *job != table_.job      ? StoreAnswer::other_job
                                                       : StoreAnswer::challenge;
  if (answer != StoreAnswer::challenge) {
    refuse(answer == StoreAnswer::other_job ? "it belongs to another job" : "it speaks another version of shoal");
    unsent.push_back(static_cast<char>(answer));
    append_block(unsent, table_.job);
    return false;
  }
  const auto theirs = parser.array<Nonce>();
  if (!theirs) return false;
  theirs_ = *theirs;
  mine_ = random_nonce();
  unsent.push_back(static_cast<char>(answer));
  append_block(unsent, table_.job);
  unsent.append(as_text(mine_)).append(as_text(store_server_proof(table_.key, table_.job, theirs_, mine_)));
  state_ = State::challenged;
  *taken = parser.taken();
  return true;
}

bool StoreSession::handle_proof(std::string_view bytes, std::size_t* taken) {
  Parser parser(bytes);
  const auto proof = parser.array<Proof>();
  if (!proof) return false;
  if (!same(*proof, store_client_proof(table_.key, table_.job, theirs_, mine_)))
    return refuse("it does not hold the job's key"), false;
  cipher_ = std::make_unique<RecordCipher>(store_cipher(table_.key, table_.job, theirs_, mine_, false));
  state_ = State::trusted;
  *taken = parser.taken();
  return true;
}

bool StoreSession::handle_request(std::string_view bytes, std::size_t* taken, bool* set) {
  Parser parser(bytes);
  const auto byte = parser.byte();
  if (!byte) return false;
  const auto request = static_cast<StoreRequest>(*byte);
  const bool sets = request == StoreRequest::set;
  const bool gets = request == StoreRequest::get;
  const bool enters = request == StoreRequest::enter;
  const bool looks = request == StoreRequest::look;
  if (!sets && !gets && !enters && !looks && request != StoreRequest::leave) return end(), false;
  const auto rank = gets || enters ? parser.number() : kStoreNoRank;
  const auto key = rank && (sets || gets) ? parser.block(kMaxStoreKeyBytes) : std::string_view();
  const auto value = key && sets ? parser.block(kMaxStoreValueBytes) : std::string_view();
  const auto size = enters ? parser.number() : 0;
  const auto low = size && enters ? parser.number() : 0;
  const auto high = low && enters ? parser.number() : 0;
  const auto process = high && enters ? parser.block(kMaxStoreProcessBytes) : std::string_view();
  if (parser.hostile()) return end(), false;
  if (!rank || !key || !value || !size || !low || !high || !process) return false;
  *taken = parser.taken();
  if (sets) {
    table_.values.insert_or_assign(std::string(*key), std::string(*value));
    const char done = static_cast<char>(StoreAnswer::done);
    say({&done, 1});
    *set = true;
  } else if (gets) {
    wanted_ = {std::string(*key), *rank};
    look_again();
  } else if (enters) {
    enter({*rank, *size, *low | std::uint64_t{*high} << 32, printable(std::string(*process))});
    *set |= !table_.conflict.empty();  // wakes the waiting sessions, which report it
  } else if (looks) {
    if (say_conflict()) return true;
    if (!table_.died.empty())
      say(*table_.died.begin());
    else if (!say_why_given_up())
      say(kStoreNoRank);
  } else {
    rank_.reset();
  }
  return true;
}

void StoreSession::enter(StoreMember member) {
  rank_ = member.rank;
  client_ = member.client;
  table_.died.erase(member.rank);  // a rank that has lost its connection may enter again
  for (const auto& [rank, other] : table_.members) {
    if (other.size == member.size) break;  // all members have the same size, or there is a conflict already
    table_.conflict = sizes_differ({static_cast<int>(rank), static_cast<int>(other.size), other.process},
                                   {static_cast<int>(member.rank), static_cast<int>(member.size), member.process});
    break;
  }
  const auto [found, is_new] = table_.members.try_emplace(member.rank, member);
  if (is_new || found->second.client == member.client) return;
  table_.conflict = given_twice(static_cast<int>(member.rank), found->second.process, member.process);
}

void StoreSession::look_again() {
  if (!wanted_ || over()) return;
  if (wanted_->rank != kStoreNoRank && say_conflict()) {
    wanted_.reset();
    return;
  }
  if (const auto found = table_.values.find(wanted_->key); found != table_.values.end()) {
    std::string answer;
    append_block(answer, found->second);
    say(answer);
  } else if (table_.died.contains(wanted_->rank)) {
    say(kStoreRankDied);
  } else if (wanted_->rank == kStoreNoRank || !say_why_given_up()) {
    return;
  }
  wanted_.reset();
}

bool StoreSession::say_why_given_up() {
  const auto found = table_.values.find(Store::kGivenUp);
  if (!rank_ || found == table_.values.end()) return false;
  say_reason(kStoreGivenUp, found->second);
  return true;
}

bool StoreSession::say_conflict() {
  if (!rank_ || table_.conflict.empty()) return false;
  say_reason(kStoreConflict, table_.conflict);
  return true;
}

void StoreSession::say_reason(std::uint32_t kind, std::string_view why) {
  std::string answer;
  append_number(answer, kind);
  append_block(answer, why);
  say(answer);
}

bool StoreSession::lost() {
  if (!rank_) return false;
  const auto member = table_.members.find(*rank_);
  if (member != table_.members.end() && member->second.client == client_) table_.members.erase(member);
  table_.died.insert(*rank_);
  rank_.reset();
  return true;
}

void StoreSession::say(std::string_view text) { append_sealed(unsent, *cipher_, text); }

void StoreSession::say(std::uint32_t number) {
  std::string text;
  append_number(text, number);
  say(text);
}

void StoreSession::refuse(std::string_view why) {
  if (!trusted()) refused_ = why;
  end();
}

void StoreSession::end() {
  state_ = State::over;
  unsent.clear();
  received_ = {};
  cipher_.reset();
}

}  // namespace shoal
