// One client of a TCP store, at the server: bytes in, bytes out, no sockets.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/join/store_parser.h"
#include "src/join/store_protocol.h"
#include "src/join/store_table.h"
#include "src/trust/proof.h"
#include "src/trust/record_cipher.h"

namespace shoal {

/// One client, from the server's point of view. Thread rule: one thread for a table and all its sessions.
class StoreSession {
 public:
  explicit StoreSession(StoreTable& table) : table_(table) {}
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;

  /// Processes bytes from the client. Memory is limited to one request, a few records, and the answers that the client has not
  /// read; the values of a step exist once for all sessions.
  void receive(std::string_view bytes);
  /// Answers a get or a gather that waits, if what it waits for is there by now or never comes.
  void look_again();
  /// Tells a client that has entered that something has happened to other ranks.
  void announce();
  /// To be called when the connection has ended, which may be the death of a rank.
  void lost();
  /// Where `unsent` is empty: puts the next part of a long answer there.
  void refill();
  /// Answers a gather that waits, at a keeper, with what rank 0's store has answered.
  void answer_gather(std::string_view answer);
  /// All values of the step have come: answers the sessions that wait for them. After the last step the server's rank gets its
  /// answer when the connections of all other ranks have ended. Precondition: step `number` has its answer.
  static void complete_step(StoreTable& table, std::uint32_t number);

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
  std::size_t receive_sealed(std::string_view bytes);
  bool handle();
  bool handle_hello(std::string_view bytes, std::size_t* taken);
  bool handle_proof(std::string_view bytes, std::size_t* taken);
  bool handle_request(std::string_view bytes, std::size_t* taken);
  bool handle_set(StoreParser& parser);
  bool handle_get(StoreParser& parser);
  bool handle_enter(StoreParser& parser, bool keeps);
  bool handle_gather(StoreParser& parser);
  bool handle_gather_several(StoreParser& parser);
  bool handle_lost(StoreParser& parser);
  bool handle_give_up(StoreParser& parser);
  void handle_look();
  void handle_stop();
  void enter(const StoreMember& member);
  StoreStep* find_step(std::uint32_t number, std::uint32_t size, std::uint32_t last);
  void wait_for_step(std::uint32_t number, StoreStep& step);
  void end_last_step();
  static void end_step(StoreTable& table, std::uint32_t number);
  void take_values(StoreStep& step);
  void look_for_value();
  void look_for_values();
  [[nodiscard]] bool waits() const noexcept { return wanted_ || step_ || long_answer_ != nullptr; }
  [[nodiscard]] bool next_waits() const;
  void tell_keeper();
  void tell_news();
  void stop_waiting();
  void forget_ranks();
  void forget_member(std::uint32_t rank);
  void leave();
  [[nodiscard]] bool say_why_given_up();
  [[nodiscard]] bool say_conflict();
  void say_reason(std::uint32_t kind, std::string_view why);
  void say(std::string_view text);
  void say(std::initializer_list<std::uint32_t> numbers);
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
  std::optional<Wanted> wanted_;                    // of a waiting get
  std::optional<std::uint32_t> step_;               // the number of the step of a waiting gather
  std::uint32_t rank_of_step_ = 0;                  // that the latest gather has named
  std::optional<std::uint32_t> last_step_;          // its number, where rank 0 waits for the end of this connection
  std::shared_ptr<const std::string> long_answer_;  // its first part has been moved to `unsent`
  std::size_t long_answer_taken_ = 0;
  bool announced_ = false;                        // since the last look
  std::optional<std::uint32_t> rank_;             // of a client that has entered and not left
  std::map<std::uint32_t, std::uint64_t> ranks_;  // for which it speaks, and their clients: its own, and others of a keeper
  bool keeps_ = false;                            // the client is a keeper
  Nonce theirs_{};
  Nonce mine_{};
};

}  // namespace shoal
