#include "src/join/store_session.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include <shoal/limits.h>
#include <shoal/store.h>

#include "src/base/printable.h"
#include "src/join/rank_names.h"
#include "src/join/startup_exchange.h"

namespace shoal {
namespace {

constexpr std::size_t kMaxPendingBytes = 4 << 20;  // answers that a client has not read
constexpr std::size_t kMaxRequestBytes = kMaxStoreKeyBytes + kMaxStoreValueBytes + 64;
constexpr std::size_t kMaxHelloBytes = kMaxStoreJobBytes + 64;
constexpr std::size_t kAnswerPartBytes = 64 << 10;  // of a long answer, encrypted at a time

}  // namespace

// Parses fields at the front of the bytes that a client has sent so far. The caller removes them only when a whole message has
// arrived.
class StoreSession::Parser {
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

StoreSession::~StoreSession() {
  leave();
  end_last_step();
  std::erase(table_.answered, this);
}

void StoreSession::receive(std::string_view bytes) {
  while (!bytes.empty() && !over()) bytes.remove_prefix(trusted() ? receive_sealed(bytes) : receive_open(bytes));
}

// Continues the handshake with `bytes`. Returns how many of them belong to it.
std::size_t StoreSession::receive_open(std::string_view bytes) {
  const std::size_t before = received_.size();
  // An unauthenticated client can make this process store no more than a hello.
  const std::size_t part = std::min(bytes.size(), kMaxHelloBytes - before);
  received_.append(bytes.substr(0, part));
  while (!trusted() && handle()) {
  }
  if (!trusted()) return part;
  // The bytes after the proof belong to records already.
  const std::size_t sealed = received_.size();
  received_.clear();
  return part - sealed;
}

// Takes as many of `bytes` as there is room for, and returns how many. Decrypts whole records and processes their requests.
std::size_t StoreSession::receive_sealed(std::string_view bytes) {
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
    while (handle()) {
    }
  }
  return part;
}

// Processes one whole message; returns false if none has arrived.
bool StoreSession::handle() {
  const auto next_is = [this](StoreRequest kind) { return trusted() && received_.starts_with(static_cast<char>(kind)); };
  if (over() || (waits() && !next_is(StoreRequest::leave) && !next_is(StoreRequest::stop))) return false;
  std::size_t taken = 0;
  const bool whole = state_ == State::stranger     ? handle_hello(received_, &taken)
                     : state_ == State::challenged ? handle_proof(received_, &taken)
                                                   : handle_request(received_, &taken);
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

bool StoreSession::handle_request(std::string_view bytes, std::size_t* taken) {
  Parser parser(bytes);
  const auto byte = parser.byte();
  if (!byte) return false;
  bool whole = true;
  switch (static_cast<StoreRequest>(*byte)) {
    case StoreRequest::set:
      whole = handle_set(parser);
      break;
    case StoreRequest::get:
      whole = handle_get(parser);
      break;
    case StoreRequest::enter:
      whole = handle_enter(parser);
      break;
    case StoreRequest::gather:
      whole = handle_gather(parser);
      break;
    case StoreRequest::leave:
      leave();
      break;
    case StoreRequest::look:
      handle_look();
      break;
    case StoreRequest::stop:
      handle_stop();
      break;
    default:
      whole = false;
      end();
  }
  if (parser.hostile()) end();
  *taken = parser.taken();
  return whole;
}

bool StoreSession::handle_set(Parser& parser) {
  const auto key = parser.block(kMaxStoreKeyBytes);
  const auto value = key ? parser.block(kMaxStoreValueBytes) : std::nullopt;
  if (!value) return false;
  table_.values.insert_or_assign(std::string(*key), std::string(*value));
  say({kStoreDone});
  if (*key == Store::kGivenUp) table_.announce();
  std::vector<StoreSession*> sessions;  // a session that has been answered no longer waits
  const auto [first, last] = table_.waiting.equal_range(*key);
  for (auto it = first; it != last; ++it) sessions.push_back(it->second);
  for (StoreSession* const session : sessions) session->look_again();
  return true;
}

bool StoreSession::handle_get(Parser& parser) {
  const auto rank = parser.number();
  const auto key = rank ? parser.block(kMaxStoreKeyBytes) : std::nullopt;
  if (!key) return false;
  wanted_ = {std::string(*key), *rank};
  table_.waiting.emplace(wanted_->key, this);
  look_again();
  return true;
}

bool StoreSession::handle_enter(Parser& parser) {
  const auto rank = parser.number();
  const auto size = parser.number();
  const auto low = parser.number();
  const auto high = parser.number();
  const auto process = high ? parser.block(kMaxStoreProcessBytes) : std::nullopt;
  if (!process) return false;
  enter({*rank, *size, *low | std::uint64_t{*high} << 32, printable(std::string(*process))});
  table_.entered.insert(this);
  if (!table_.conflict.empty())
    table_.announce();
  else if (table_.has_news())
    announce();
  return true;
}

bool StoreSession::handle_gather(Parser& parser) {
  const auto number = parser.number();
  const auto size = parser.number();
  const auto rank = parser.number();
  const auto last = parser.number();
  const auto value = last ? parser.block(kMaxStoreValueBytes) : std::nullopt;
  if (!value) return false;
  if (say_conflict()) return true;
  const bool valid = *size <= static_cast<std::uint32_t>(kMaxJobRanks) && *rank < *size && *last <= 1;
  const auto found = valid ? table_.steps.try_emplace(*number, *size).first : table_.steps.end();
  if (!valid || found->second.size() != *size || found->second.complete()) return end(), false;
  StoreStep& step = found->second;
  step.put(*rank, *value);
  step.waiting.insert(this);
  step_ = *number;
  rank_of_step_ = *rank;
  if (step.complete())
    complete_step(*number, step, *last == 1);
  else
    look_again();
  return true;
}

// Answers the sessions that wait for the values. After the last step rank 0, whose process serves the store, gets its answer
// when the connections of all others have ended.
void StoreSession::complete_step(std::uint32_t number, StoreStep& step, bool last) {
  step.make_answer();
  for (StoreSession* const session : std::set(step.waiting)) {
    if (last) {
      session->forget_rank();
      if (session->rank_of_step_ == 0) continue;
      session->end_last_step();
      session->last_step_ = number;
      step.ending.emplace(session, session->rank_of_step_);
    }
    session->take_values(step);
  }
  if (step.ending.empty()) end_step(table_, number);
}

void StoreSession::end_step(StoreTable& table, std::uint32_t number) {
  const auto found = table.steps.find(number);
  for (StoreSession* const session : std::set(found->second.waiting)) session->take_values(found->second);
  table.steps.erase(found);
}

void StoreSession::take_values(StoreStep& step) {
  long_answer_ = step.answer;
  long_answer_taken_ = 0;
  step_.reset();
  step.waiting.erase(this);
  table_.answered.push_back(this);
}

void StoreSession::refill() {
  if (over() || !unsent.empty() || long_answer_ == nullptr) return;
  const std::string_view part = std::string_view(*long_answer_).substr(long_answer_taken_, kAnswerPartBytes);
  append_sealed(unsent, *cipher_, part);
  long_answer_taken_ += part.size();
  if (long_answer_taken_ < long_answer_->size()) return;
  long_answer_.reset();
  if (std::exchange(announced_, false)) announce();
}

void StoreSession::announce() {
  if (!std::exchange(announced_, true) && long_answer_ == nullptr) say({kStoreNews});
}

void StoreSession::handle_look() {
  announced_ = false;
  if (say_conflict()) return;
  if (!table_.died.empty())
    say({*table_.died.begin()});
  else if (!rank_ || !say_why_given_up())
    say({kStoreNoRank});
}

void StoreSession::handle_stop() {
  if (!step_) return;
  const StoreStep& step = table_.steps.find(*step_)->second;
  std::vector<std::uint32_t> missing = step.missing();
  for (const auto& [session, rank] : step.ending) missing.push_back(rank);
  const std::size_t named = std::min(missing.size(), kNamedRanks);
  std::string answer;
  append_number(answer, kStoreMissing);
  append_number(answer, static_cast<std::uint32_t>(missing.size()));
  append_number(answer, static_cast<std::uint32_t>(named));
  for (std::size_t i = 0; i < named; ++i) append_number(answer, missing[i]);
  stop_waiting();
  say(answer);
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
  if (over()) return;
  if (wanted_) look_for_value();
  if (step_) look_for_values();
}

void StoreSession::look_for_value() {
  const auto found = table_.values.find(wanted_->key);
  const bool of_a_rank = wanted_->rank != kStoreNoRank;
  bool answered = of_a_rank && say_conflict();
  if (!answered && found != table_.values.end()) {
    std::string answer;
    append_block(answer, found->second);
    say(answer);
    answered = true;
  }
  if (!answered && table_.died.contains(wanted_->rank)) {
    say({kStoreRankDied});
    answered = true;
  }
  if (answered || (of_a_rank && rank_ && say_why_given_up())) stop_waiting();
}

// For what keeps the values from coming: complete_step() answers with them.
void StoreSession::look_for_values() {
  const StoreStep& step = table_.steps.find(*step_)->second;
  if (step.complete()) return;  // rank 0 waits for the end of the others
  bool answered = say_conflict();
  if (const auto died = table_.died.begin(); !answered && died != table_.died.end() && *died < step.size()) {
    say({kStoreRankDied, *died});
    answered = true;
  }
  if (answered || say_why_given_up()) stop_waiting();
}

void StoreSession::forget_rank() {
  rank_.reset();
  table_.entered.erase(this);
}

void StoreSession::leave() {
  stop_waiting();
  forget_rank();
}

// No answer will come to a get or a gather that waits.
void StoreSession::stop_waiting() {
  if (wanted_) {
    const auto [first, last] = table_.waiting.equal_range(wanted_->key);
    table_.waiting.erase(std::find_if(first, last, [this](const auto& one) { return one.second == this; }));
    wanted_.reset();
  }
  if (step_) {
    table_.steps.find(*step_)->second.waiting.erase(this);
    step_.reset();
  }
}

bool StoreSession::say_why_given_up() {
  const auto found = table_.values.find(Store::kGivenUp);
  if (found == table_.values.end()) return false;
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

// Rank 0 no longer waits for this client.
void StoreSession::end_last_step() {
  if (!last_step_) return;
  StoreStep& step = table_.steps.find(*last_step_)->second;
  step.ending.erase(this);
  if (step.ending.empty()) end_step(table_, *last_step_);
  last_step_.reset();
}

void StoreSession::lost() {
  stop_waiting();
  end_last_step();
  if (!rank_) return;
  const auto member = table_.members.find(*rank_);
  if (member != table_.members.end() && member->second.client == client_) table_.members.erase(member);
  table_.died.insert(*rank_);
  forget_rank();
  table_.announce();
}

void StoreSession::say(std::string_view text) {
  append_sealed(unsent, *cipher_, text);
  table_.answered.push_back(this);
}

void StoreSession::say(std::initializer_list<std::uint32_t> numbers) {
  std::string text;
  for (const std::uint32_t number : numbers) append_number(text, number);
  say(text);
}

void StoreSession::refuse(std::string_view why) {
  if (!trusted()) refused_ = why;
  end();
}

void StoreSession::end() {
  state_ = State::over;
  stop_waiting();
  unsent.clear();
  received_ = {};
  cipher_.reset();
}

}  // namespace shoal
