#include "src/join/store_session.h"

#include <algorithm>
#include <set>
#include <utility>

#include <shoal/limits.h>
#include <shoal/store.h>

#include "src/base/printable.h"
#include "src/join/rank_names.h"
#include "src/join/startup_exchange.h"
#include "src/join/store_relay.h"

namespace shoal {
namespace {

constexpr std::size_t kMaxPendingBytes = 4 << 20;  // answers that a client has not read
constexpr std::size_t kMaxRequestBytes = kMaxStoreKeyBytes + kMaxStoreValueBytes + 64;
constexpr std::size_t kMaxHelloBytes = kMaxStoreJobBytes + 64;
constexpr std::size_t kAnswerPartBytes = 64 << 10;  // of a long answer, encrypted at a time

}  // namespace

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
  const auto taken = open_sealed(received_, *cipher_, bytes);
  while (handle()) {
  }
  if (!taken && !over()) refused_ = "a record failed authentication: it was changed in transit";
  if (!taken || received_.size() >= kMaxRequestBytes) end();  // more than one request at a time
  return taken.value_or(bytes.size());
}

// Processes one whole message; returns false if none has arrived.
bool StoreSession::handle() {
  if (over() || (waits() && next_waits())) return false;
  std::size_t taken = 0;
  const bool whole = state_ == State::stranger     ? handle_hello(received_, &taken)
                     : state_ == State::challenged ? handle_proof(received_, &taken)
                                                   : handle_request(received_, &taken);
  if (unsent.size() > kMaxPendingBytes) refuse("it does not read its answers");
  if (!whole || over()) return false;
  received_.erase(0, taken);
  return true;
}

// Whether the next request has to wait for the answer to an earlier one.
bool StoreSession::next_waits() const {
  if (received_.empty()) return true;
  switch (static_cast<StoreRequest>(received_.front())) {
    case StoreRequest::leave:
    case StoreRequest::stop:
      return false;
    case StoreRequest::gather_several:
    case StoreRequest::lost:
    case StoreRequest::give_up:
      return !keeps_;
    default:
      return true;
  }
}

bool StoreSession::handle_hello(std::string_view bytes, std::size_t* taken) {
  StoreParser parser(bytes);
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
  if (table_.over) return end(), false;  // the client connects again, until it finds the store of its start-up
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
  StoreParser parser(bytes);
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
  StoreParser parser(bytes);
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
    case StoreRequest::keep:
      whole = handle_enter(parser, static_cast<StoreRequest>(*byte) == StoreRequest::keep);
      break;
    case StoreRequest::gather:
      whole = handle_gather(parser);
      break;
    case StoreRequest::gather_several:
      whole = handle_gather_several(parser);
      break;
    case StoreRequest::lost:
      whole = handle_lost(parser);
      break;
    case StoreRequest::give_up:
      whole = handle_give_up(parser);
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
  if (whole) ++table_.requests;
  *taken = parser.taken();
  return whole;
}

bool StoreSession::handle_set(StoreParser& parser) {
  const auto key = parser.block(kMaxStoreKeyBytes);
  const auto value = key ? parser.block(kMaxStoreValueBytes) : std::nullopt;
  if (!value) return false;
  table_.values.insert_or_assign(std::string(*key), std::string(*value));
  say({kStoreDone});
  if (*key == Store::kGivenUp) {
    if (table_.relay != nullptr) table_.relay->give_up(*value);
    table_.announce();
  }
  std::vector<StoreSession*> sessions;  // a session that has been answered no longer waits
  const auto [first, last] = table_.waiting.equal_range(*key);
  for (auto it = first; it != last; ++it) sessions.push_back(it->second);
  for (StoreSession* const session : sessions) session->look_again();
  return true;
}

bool StoreSession::handle_get(StoreParser& parser) {
  const auto rank = parser.number();
  const auto key = rank ? parser.block(kMaxStoreKeyBytes) : std::nullopt;
  if (!key) return false;
  wanted_ = {std::string(*key), *rank};
  table_.waiting.emplace(wanted_->key, this);
  look_again();
  return true;
}

bool StoreSession::handle_enter(StoreParser& parser, bool keeps) {
  const auto member = parse_member(parser);
  if (!member) return false;
  rank_ = member->rank;
  keeps_ = keeps;
  table_.entered.insert(this);
  enter(*member);
  tell_news();
  return true;
}

bool StoreSession::handle_gather(StoreParser& parser) {
  const auto number = parser.number();
  const auto size = parser.number();
  const auto rank = parser.number();
  const auto last = parser.number();
  const auto value = last ? parser.block(kMaxStoreValueBytes) : std::nullopt;
  if (!value) return false;
  if (say_conflict()) return true;
  StoreStep* const step = find_step(*number, *size, *last);
  if (step == nullptr || *rank >= *size) return end(), false;
  step->put(*rank, *value);
  rank_of_step_ = *rank;
  wait_for_step(*number, *step);
  return true;
}

// Null for a step that cannot be, or has ended.
StoreStep* StoreSession::find_step(std::uint32_t number, std::uint32_t size, std::uint32_t last) {
  if (size > static_cast<std::uint32_t>(kMaxJobRanks) || last > 1 || step_.value_or(number) != number) return nullptr;
  StoreStep& step = table_.steps.try_emplace(number, size).first->second;
  if (step.size() != size || step.answer != nullptr) return nullptr;
  step.last = last == 1;
  return &step;
}

void StoreSession::wait_for_step(std::uint32_t number, StoreStep& step) {
  step.waiting.insert(this);
  step_ = number;
  if (table_.relay != nullptr) {
    table_.relay->gave(number);
  } else if (step.complete() && !table_.has_failed(step.size())) {  // else other ranks may have been told, and get no values
    step.make_answer();
    return complete_step(table_, number);
  }
  look_again();
}

void StoreSession::complete_step(StoreTable& table, std::uint32_t number) {
  StoreStep& step = table.steps.find(number)->second;
  table.over = step.last;
  for (StoreSession* const session : std::set(step.waiting)) {
    if (step.last) {
      session->forget_ranks();
      if (session->rank_of_step_ == table.server) continue;
      session->end_last_step();
      session->last_step_ = number;
      step.ending.emplace(session, session->rank_of_step_);
    }
    session->take_values(step);
  }
  if (step.ending.empty()) end_step(table, number);
}

void StoreSession::answer_gather(std::string_view answer) {
  stop_waiting();
  say(answer);
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
  if (keeps_ && long_answer_ == nullptr) return tell_keeper();
  if (!std::exchange(announced_, true) && long_answer_ == nullptr) say({kStoreNews});
}

// To this client, and to all if there is a conflict.
void StoreSession::tell_news() {
  if (!table_.conflict.empty())
    table_.announce();
  else if (table_.has_news())
    announce();
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
  if (table_.relay != nullptr && step.answer == nullptr) return table_.relay->stop();  // rank 0's store knows who is missing
  std::vector<std::uint32_t> missing = step.answer == nullptr ? step.missing() : std::vector<std::uint32_t>();
  for (const auto& [session, rank] : step.ending) missing.push_back(rank);
  const std::size_t named = std::min(missing.size(), kNamedRanks);
  std::string answer;
  append_number(answer, kStoreMissing);
  append_number(answer, static_cast<std::uint32_t>(missing.size()));
  append_number(answer, static_cast<std::uint32_t>(named));
  for (std::size_t i = 0; i < named; ++i) append_number(answer, missing[i]);
  answer_gather(answer);
}

void StoreSession::enter(const StoreMember& member) {
  if (!ranks_.insert_or_assign(member.rank, member.client).second) return;
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
  if (keeps_ || step.answer != nullptr) return;  // a keeper is told; the server's rank waits for the end of the others
  bool answered = say_conflict();
  if (const auto died = table_.died.begin(); !answered && died != table_.died.end() && *died < step.size()) {
    say({kStoreRankDied, *died});
    answered = true;
  }
  if (answered || say_why_given_up()) stop_waiting();
}

void StoreSession::forget_ranks() {
  ranks_.clear();
  rank_.reset();
  table_.entered.erase(this);
}

// For a rank that has died.
void StoreSession::forget_member(std::uint32_t rank) {
  const auto mine = ranks_.find(rank);
  if (mine == ranks_.end()) return;
  const auto member = table_.members.find(rank);
  if (member != table_.members.end() && member->second.client == mine->second) table_.members.erase(member);
  ranks_.erase(mine);
}

void StoreSession::leave() {
  stop_waiting();
  forget_ranks();
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
  const std::uint32_t rank = *rank_;
  table_.died.insert(rank);
  while (!ranks_.empty()) forget_member(ranks_.begin()->first);
  forget_ranks();
  if (table_.relay != nullptr) table_.relay->lost(rank);
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
