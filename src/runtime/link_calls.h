// Calls whose data goes over the links of the ProgressEngine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <shoal/status.h>

#include "src/base/ring_queue.h"
#include "src/diagnosis/call_monitor.h"
#include "src/diagnosis/signature.h"
#include "src/plan/operation.h"
#include "src/plan/plan.h"
#include "src/progress/progress_client.h"
#include "src/progress/progress_engine.h"
#include "src/runtime/call_trace.h"

namespace shoal {

/// TileHeader::edge of the tile that carries the signature of the sender's call.
inline constexpr std::uint32_t kCallEdge = 0xFFFFFFFF;
/// The signature in such a tile; nothing where `head` is another tile.
std::optional<CallSignature> signature_in(const Arrival& head);

/// A peer has aborted, and took back a tile that this rank was reading.
struct ReclaimedTile {
  int peer = -1;
};
/// Why a call cannot continue: the cause to fail with, or what the CallRunner has to ask peers about.
using CallProblem = std::variant<Status, Disagreement, ReclaimedTile>;

/// Order on the wire: on every link the tiles of call n precede those of call n + 1, and each call starts with the sender's
/// signature. So the calls of a communicator form one long Program, and what the Verifier proves of each holds for all.
///
/// Rank numbers are those of the communicator unless said otherwise. Thread rule: the driver.
class LinkCalls {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// A call waiting for its turn, and the index of this link in its plan.
  struct Turn {
    internal::Operation* operation = nullptr;
    std::uint32_t plan_link = 0;
  };
  /// A tile that the link has taken but whose memory it still needs.
  struct Outstanding {
    internal::Operation* operation = nullptr;
    std::uint32_t plan_link = 0;
    std::uint32_t instruction = 0;
    std::size_t bytes = 0;
    std::uint64_t ticket = 0;
  };
  struct LinkState : ClientLink {
    RingQueue<Turn> senders;
    RingQueue<Turn> receivers;
    RingQueue<Outstanding> outstanding;
    Absence absence;      ///< of the peer
    bool in_use = false;  ///< is in LinkCalls::in_use()
    [[nodiscard]] bool needed() const noexcept { return !senders.empty() || !receivers.empty() || !outstanding.empty(); }
  };

  /// `engine`, `group` and `trace` outlive it. `number`: the communicator's, in the tiles of this process.
  LinkCalls(ProgressEngine& engine, const Group& group, std::uint32_t number, const CallTrace& trace);

  // Links.
  /// The links that calls in flight need, those whose peer's absence has begun, and some that were needed lately.
  [[nodiscard]] std::span<LinkState* const> in_use() const noexcept { return in_use_; }
  /// Puts a link there.
  void use(LinkState& state) {
    if (!std::exchange(state.in_use, true)) in_use_.push_back(&state);
  }
  /// Null where the rank of the job is no member, or this rank.
  [[nodiscard]] LinkState* of_job_rank(int job_rank) noexcept {
    return const_cast<LinkState*>(std::as_const(*this).of_job_rank(job_rank));
  }
  [[nodiscard]] const LinkState* of_job_rank(int job_rank) const noexcept {
    const int index = link_of_job_rank_[static_cast<std::size_t>(job_rank)];
    return index < 0 ? nullptr : &links_[static_cast<std::size_t>(index)];
  }
  /// Null for this rank.
  [[nodiscard]] LinkState* of_rank(int rank) noexcept {
    const int index = link_of_rank_[static_cast<std::size_t>(rank)];
    return index < 0 ? nullptr : &links_[static_cast<std::size_t>(index)];
  }
  /// Fills in what Plans need to know of the links.
  void describe(PlanContext& context) const noexcept;
  /// Whether a call with `plan` (null: any call) uses the transport with this index.
  [[nodiscard]] bool uses_transport(std::uint32_t transport, const Plan* plan) const noexcept;
  [[nodiscard]] std::size_t spilled_bytes() const noexcept;

  // Calls.
  void start(internal::Operation* operation);
  /// Calls that have started and not ended.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Sends what the links take.
  bool send();
  /// Receives and folds what has arrived.
  bool receive();
  /// Does the steps of `operation` that need no link.
  bool work_locally(internal::Operation* operation);
  /// `operation` is complete: ends its turns on links, where nothing is left to do. False where that must wait.
  bool end_turns(internal::Operation* operation);
  void ended() noexcept { --size_; }
  /// Takes all turns back. The links stay in use, but the buffers of the calls belong to the caller again.
  void abort();

  // Checks.
  [[nodiscard]] bool has_problem() const noexcept { return problem_.has_value(); }
  /// The first one since it was taken. A Status does not name the call that this rank is in.
  std::optional<CallProblem> take_problem() { return std::exchange(problem_, std::nullopt); }
  /// A signature waits for the first tile, but only briefly: the peer must learn that this rank is in the call, and in which.
  bool send_late_signatures(Time now);
  /// When signatures are sent without a first tile; nothing: none waits.
  [[nodiscard]] std::optional<Time> signatures_due() const noexcept {
    return signatures_due_ == Time{} ? std::nullopt : std::optional(signatures_due_);
  }
  /// The signature at the head of a link from which this rank waits for nothing, with the 32-bit number of its call.
  [[nodiscard]] std::optional<std::pair<std::uint32_t, CallSignature>> unclaimed_signature(LinkState& state) const;
  /// Adds the ranks that `operation` waits for.
  void add_late(const internal::Operation& operation, Late& late);
  /// The links of `operation` that are not connected yet.
  [[nodiscard]] std::vector<const LinkState*> unconnected(const internal::Operation& operation) const;

 private:
  /// The oldest tile of this communicator that has arrived and is not released; null where there is none.
  [[nodiscard]] const Arrival* head(LinkState& state) const noexcept;
  void release(LinkState& state);
  bool retire_sent(LinkState& state);
  bool advance_send(LinkState& state);
  bool send_signature(LinkState& state);
  void taken_by_link(LinkState& state, std::uint32_t instruction, std::size_t bytes);
  bool advance_receive(LinkState& state);
  bool receive_signature(LinkState& state, internal::Operation* operation, std::uint32_t plan_link, const Arrival& head);
  bool receive_tile(LinkState& state, internal::Operation* operation, std::uint32_t plan_link, const Arrival& head);
  bool fold(internal::Operation* operation, std::uint32_t index);
  bool advance_local(internal::Operation* operation);
  /// Notes the first problem; false, for the advance functions: nothing more to do here.
  bool report(CallProblem problem);
  bool report_unexpected(const LinkState& state, const Arrival& head);

  TileRouter& router_;
  const ClientDirectory& clients_;
  const Device& device_;
  const Group& group_;
  const std::uint32_t number_;
  const CallTrace& trace_;
  std::size_t tile_bytes_;
  std::size_t network_tile_bytes_;
  bool costly_tiles_;
  std::vector<int> link_of_rank_;      // -1: this rank
  std::vector<int> link_of_job_rank_;  // -1: not a member, or this rank
  std::vector<LinkState> links_;
  std::vector<LinkState*> in_use_;  // so that a pass costs what the calls in flight use, not what the job has
  std::size_t size_ = 0;
  std::vector<const std::byte*> operands_;  // of the fold in progress: never more than there are ranks
  Time signatures_due_{};
  std::optional<CallProblem> problem_;
};

}  // namespace shoal
