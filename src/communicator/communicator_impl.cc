#include "src/communicator/communicator_impl.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "src/algorithms/algorithm.h"
#include "src/base/deadline.h"
#include "src/communicator/integer_average.h"
#include "src/plan/call_buffers.h"
#include "src/runtime/call_group.h"
#include "src/schedule/layout.h"
#include "src/selector/selector.h"
#include "src/settings/settings.h"
#include "src/trust/refusals.h"

namespace shoal::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Collective kBarrier{CollectiveKind::all_reduce, 1, DataType::uint8, ReduceOp::bor, 0};

const char* reason_for(ChoiceBasis basis, bool forced_by_call) {
  switch (basis) {
    case ChoiceBasis::model:
      return "model";
    case ChoiceBasis::table:
      return "table (SHOAL_TUNING)";
    case ChoiceBasis::forced:
      break;
  }
  return forced_by_call ? "the call" : "SHOAL_ALGORITHM";
}

/// Nothing has started: the call may be made again.
Status no_memory(const Request& request, std::size_t bytes) {
  return {StatusCode::system_error,
          fmt::format("{} of {} x {}: no memory for the {} bytes of scratch space of its algorithm; split the call into "
                      "smaller ones, or set SHOAL_ALGORITHM",
                      to_string(request.kind), count_of(request), to_string(request.type), bytes)};
}

Message message_of(const Request& request) {
  const bool is_send = request.kind == CollectiveKind::send;
  // A send only reads the buffer.
  auto* data = static_cast<std::byte*>(is_send ? const_cast<void*>(request.input) : request.output);
  return {is_send, request.peer, request.tag, request.type, request.count * size_of(request.type), data, 0, 0, 0, {}};
}

/// Whether `collective`, of the same kind, is that of `request`.
bool is_collective_of(const Request& request, const Collective& collective) noexcept {
  if (collective.type != request.type || collective.op != request.op || collective.root != request.root) return false;
  if (!request.has_counts) return collective.counts.empty() && collective.count == request.count;
  const std::size_t own = request.counts.size();
  return collective.counts.size() == own + request.receive_counts.size() &&
         std::ranges::equal(collective.counts.first(own), request.counts) &&
         std::ranges::equal(collective.counts.subspan(own), request.receive_counts);
}

}  // namespace

Status waits_in_callback(std::string_view call) {
  return {StatusCode::invalid_argument,
          fmt::format("{}: a callback of on_completion must not wait, because its thread moves the data of all calls; make the "
                      "call with _async, or from another thread",
                      call)};
}

Status waits_in_group(std::string_view call) {
  return {StatusCode::invalid_argument,
          fmt::format("{}: the call waits for other ranks, and so cannot be part of a call group; make it before group_begin() "
                      "or after group_end()",
                      call)};
}

CommunicatorImpl::CommunicatorImpl(ConnectedJob wired, CommunicatorOptions options)
    : executor_(std::move(wired.executor)),
      transports_(std::move(wired.transports)),
      numerics_(wired.numerics),
      tuned_(std::move(wired.tuned)),
      most_links_(wired.most_links),
      options_(std::move(options)),
      barrier_{.kind = CollectiveKind::barrier,
               .type = kBarrier.type,
               .op = kBarrier.op,
               .input = barrier_bytes_.data(),
               .output = barrier_bytes_.data() + barrier_bytes_.size() / 2,
               .count = kBarrier.count} {
  if (executor_->rank() == 0 && setting("SHOAL_EXPLAIN") == "1") statistics_ = std::make_unique<CallStatistics>();
}

CommunicatorImpl::~CommunicatorImpl() {
  executor_->shut_down();
  if (statistics_ == nullptr) return;
  const Topology& topology = executor_->topology();
  fmt::print(stderr, "{}",
             statistics_->text(fmt::format("{} rank{} on {} over {}", topology.ranks(), topology.ranks() == 1 ? "" : "s",
                                           topology.shape(), transports_)));
  // Counted for the whole process since it started: an unauthenticated peer belongs to no communicator.
  if (const std::string refused = to_text(refusals()); !refused.empty()) fmt::print(stderr, "  {}\n", refused);
}

Status CommunicatorImpl::check_open() const {
  if (!executor_->closed()) return {};
  return {executor_->status().code(), fmt::format("the communicator is closed: {}", executor_->status().message())};
}

Status CommunicatorImpl::check_message(const Request& request, const CallOptions& options) const {
  if (Status status = check_open(); !status.ok()) return status;
  if (Status status = check_arguments(request, options, executor_->rank(), executor_->topology().ranks()); !status.ok())
    return status;
  const void* buffer = request.kind == CollectiveKind::send ? request.input : request.output;
  if (request.count == 0 || buffer != nullptr) return {};
  return {StatusCode::invalid_argument, fmt::format("{}: null buffer", call_name(request.kind))};
}

double CommunicatorImpl::estimated_us(const Request& message) const {
  const Topology& topology = executor_->topology();
  const auto size_bytes = static_cast<double>(message.count * size_of(message.type));
  double slowest = 0;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    if (message.peer >= 0 && rank != message.peer) continue;
    const LinkCost& cost = topology.cost[static_cast<std::size_t>(topology.link_class(executor_->rank(), rank))];
    slowest = std::max(slowest, cost.latency_us + size_bytes * cost.us_per_byte);
  }
  return slowest;
}

Result<ConnectedJob> CommunicatorImpl::make_group(std::span<const int> ranks) {
  const auto invalid = [](std::string what) { return Status(StatusCode::invalid_argument, "group: " + std::move(what)); };
  if (Operation::in_callback()) return waits_in_callback("group");
  if (executor_->closed())
    return Status(executor_->status().code(),
                  fmt::format("group: the communicator is closed: {}", executor_->status().message()));
  const int size = executor_->topology().ranks();
  if (ranks.empty()) return invalid("no ranks are named");
  std::vector<int> members(ranks.begin(), ranks.end());
  std::vector<bool> named(static_cast<std::size_t>(size));
  for (const int rank : members) {
    if (rank < 0 || rank >= size) return invalid(fmt::format("rank {} is not a rank; the ranks are 0 to {}", rank, size - 1));
    if (named[static_cast<std::size_t>(rank)]) return invalid(fmt::format("rank {} is named twice", rank));
    named[static_cast<std::size_t>(rank)] = true;
  }
  if (!named[static_cast<std::size_t>(executor_->rank())])
    return invalid(fmt::format("this rank, {}, is not among the members; only members make a group", executor_->rank()));

  std::uint32_t made_before = 0;
  {
    const std::scoped_lock lock(groups_mutex_);
    made_before = groups_made_[members]++;
  }
  auto executor = Executor::create(executor_->engine(), executor_->group().subset(members, made_before));
  if (!executor.ok()) return executor.status();
  ConnectedJob group{std::move(executor).value(), {}, numerics_, {}, most_links_};
  group.transports = group.executor->transports();
  // The table holds only for the placement of ranks that it was looked up for.
  if (group.executor->topology().node_of_rank == executor_->topology().node_of_rank) group.tuned = tuned_;
  return group;
}

namespace {

Status aborted_by(const Executor& executor, const std::string& reason) {
  const Group& group = executor.group();
  return {StatusCode::aborted, fmt::format("{} aborted: {}", group.name_of(executor.rank()), reason)};
}

}  // namespace

/// Registers a running shrink(), so that abort() can end it.
class CommunicatorImpl::Meeting {
 public:
  explicit Meeting(CommunicatorImpl& owner) : owner_(owner) {
    const std::scoped_lock lock(owner_.meetings_mutex_);
    owner_.meetings_.push_back(this);
  }
  ~Meeting() {
    const std::scoped_lock lock(owner_.meetings_mutex_);
    std::erase(owner_.meetings_, this);
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Begins the next attempt, perhaps with other ranks.
  void begin(std::shared_ptr<Executor> executor) {
    const std::scoped_lock lock(owner_.meetings_mutex_);
    executor_ = std::move(executor);
    if (reason_) executor_->close(aborted_by(*executor_, *reason_));
  }
  /// Precondition: the caller holds the owner's meetings_mutex_.
  void abort(const std::string& reason) {
    if (!reason_) reason_ = reason;
    if (executor_ != nullptr) executor_->close(aborted_by(*executor_, reason));
  }

 private:
  CommunicatorImpl& owner_;
  std::shared_ptr<Executor> executor_;
  std::optional<std::string> reason_;
};

void CommunicatorImpl::abort(const std::string& reason) {
  executor_->close(aborted_by(*executor_, reason));
  const std::scoped_lock lock(meetings_mutex_);
  for (Meeting* meeting : meetings_) meeting->abort(reason);
}

Result<std::unique_ptr<CommunicatorImpl>> CommunicatorImpl::shrink(std::span<const int> without,
                                                                   std::chrono::milliseconds timeout) {
  const auto invalid = [](std::string what) { return Status(StatusCode::invalid_argument, "shrink: " + std::move(what)); };
  const int size = executor_->topology().ranks();
  for (const int rank : without) {
    if (rank < 0 || rank >= size) return invalid(fmt::format("rank {} is not a rank; the ranks are 0 to {}", rank, size - 1));
    if (rank == executor_->rank()) return invalid(fmt::format("rank {} is this rank itself", rank));
  }
  if (timeout.count() <= 0) return invalid(fmt::format("a timeout of {} ms is not positive", timeout.count()));
  if (Operation::in_callback()) return waits_in_callback("shrink");
  if (CallGroup::open()) return waits_in_group("shrink");
  if (executor_->engine()->left_to_parent()) return executor_->status();
  const auto deadline = deadline_after(timeout);
  // Each rank acts on the deaths that it knows of. A rank that has missed a death makes a group that contains the dead rank,
  // learns of the death there, and goes on to the group in which the other ranks wait. A rank that only knows that a group
  // failed tries the same members again, and learns of the death there. A deadline, however, ends shrink() on all ranks: a rank
  // that tried again would be alone for the rest of its own time, and would report ranks as missing that only timed out.
  constexpr int kSameAgain = 3;
  // Minimum time of an attempt after a death shortly before the deadline: detecting the missing ranks takes a moment.
  const auto least = std::min(timeout, std::chrono::milliseconds(100));
  int same = 0;
  Meeting meeting(*this);
  for (std::vector<int> tried;;) {
    std::vector<int> members = executor_->present();  // ranks of the job
    std::erase_if(members, [&](int job_rank) {
      return std::ranges::any_of(
          without, [&](int rank) { return executor_->group().members[static_cast<std::size_t>(rank)] == job_rank; });
    });
    ProgressEngine& engine = *executor_->engine();
    auto executor = Executor::create(executor_->engine(), engine.next_group_of(members));
    if (!executor.ok()) return executor.status();
    ConnectedJob wired{std::move(executor).value(), {}, numerics_, {}, most_links_};
    wired.transports = wired.executor->transports();
    auto left = std::make_unique<CommunicatorImpl>(std::move(wired), options_);
    meeting.begin(left->executor_);
    CallOptions time_limit;
    time_limit.timeout = std::max(least, std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    Status met = left->run(Request::barrier(), time_limit);
    if (met.ok()) return left;
    same = members == tried ? same + 1 : 0;
    const bool ended = met.code() == StatusCode::timeout || met.code() == StatusCode::aborted;
    if (ended || Clock::now() >= deadline || same == kSameAgain)
      return Status(met.code(), fmt::format("shrink: the surviving ranks could not agree on a new group: {}", met.message()));
    tried = std::move(members);
  }
}

Result<PlanKey> CommunicatorImpl::check(const Request& request, const CallOptions& options) const {
  const int ranks = executor_->topology().ranks();
  const int rank = executor_->rank();
  if (Status status = check_open(); !status.ok()) return status;
  if (Status status = check_arguments(request, options, rank, ranks); !status.ok()) return status;
  if (request.kind == CollectiveKind::barrier)
    return PlanKey{.collective = kBarrier, .barrier = true, .algorithm = options.algorithm};
  PlanKey key{.collective = collective_of(request), .algorithm = options.algorithm};
  const auto in_place = check_buffers(request, key.collective, rank, ranks);
  if (!in_place.ok()) return in_place.status();
  key.in_place = *in_place;
  return key;
}

// In direct and one_shot every element is reduced from the inputs of the ranks in rank order (for a reduce: the inputs of the
// other ranks, then the root's), independent of the placement of the ranks.
Result<Choice> CommunicatorImpl::choose_strictly(const Collective& collective, std::string_view forced) const {
  constexpr std::array<std::string_view, 2> kInRankOrder{"one_shot", "direct"};
  if (!forced.empty()) {
    const auto algorithm = find_algorithm(forced);
    if (!algorithm.ok()) return algorithm.status();
    if (std::ranges::find(kInRankOrder, (*algorithm)->name) == kInRankOrder.end()) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("algorithm {} is not allowed: with SHOAL_NUMERICS=strict a {} uses one_shot or direct, because "
                                "the result of other algorithms depends on the placement of the ranks",
                                forced, to_string(collective.kind)));
    }
    return select(executor_->topology(), collective, forced);
  }
  if (waits_decide(executor_->topology(), collective)) return select(executor_->topology(), collective);
  std::optional<Choice> best;
  for (const std::string_view name : kInRankOrder) {
    const auto choice = select(executor_->topology(), collective, name);
    if (!choice.ok()) continue;
    if (!best || choice->predicted_us < best->predicted_us) best = *choice;
  }
  if (!best) return select(executor_->topology(), collective, "direct");  // fails with the reason
  best->basis = ChoiceBasis::model;
  return *best;
}

Result<Choice> CommunicatorImpl::choose(const Collective& collective, std::string_view forced) {
  if (numerics_ == Numerics::strict && reduces(collective.kind) && is_floating(collective.type))
    return choose_strictly(collective, forced);
  const TunedShape* tuned = tuned_ ? &*tuned_ : nullptr;
  const ChoiceCosts costs = numerics_ == Numerics::measured ? ChoiceCosts::exact : ChoiceCosts::classes;
  if (collective.counts.empty() || !forced.empty())
    return select(executor_->topology(), collective, forced, tuned, costs, most_links_);
  // Counts may differ in every call, and choosing takes longer than most calls. So all calls of a size class (a power of two)
  // share one choice.
  const std::scoped_lock lock(choices_mutex_);
  Collective like = collective;
  like.count = std::bit_ceil(collective.count);
  Collective remembered = like;
  remembered.counts = {};
  for (const auto& [known, choice] : choices_) {
    if (known == remembered) return choice;
  }
  const auto choice = select(executor_->topology(), like, forced, tuned, costs, most_links_);
  if (choice.ok()) choices_.emplace_back(remembered, *choice);
  return choice;
}

Result<Plan*> CommunicatorImpl::find_plan(const PlanKey& key, std::unique_ptr<Plan>* owned) {
  PlanCache& plans = executor_->plans();
  if (Plan* plan = plans.find(key)) return plan;
  std::string_view forced = key.algorithm == nullptr ? std::string_view() : std::string_view(key.algorithm);
  // The communicator's override applies to all_reduce; other collectives keep the Selector's choice.
  if (forced.empty() && key.collective.kind == CollectiveKind::all_reduce && !key.barrier) forced = options_.algorithm;
  const auto choice = choose(key.collective, forced);
  if (!choice.ok()) return choice.status();
  const auto program = build_program(*choice->algorithm, executor_->topology(), key.collective, executor_->rank());
  if (!program.ok()) return program.status();
  auto plan = make_plan(executor_->plan_context(), key, *program);
  if (!plan.ok()) return plan.status();
  (*plan)->predicted_us = choice->predicted_us;
  if (statistics_ != nullptr) {
    (*plan)->meter =
        statistics_->meter(key.barrier ? CollectiveKind::barrier : key.collective.kind, key.collective.input_bytes(),
                           (*plan)->algorithm, reason_for(choice->basis, key.algorithm != nullptr));
  }
  *owned = std::move(plan).value();
  // Calls with counts, which may differ every time, may fill only a part of the cache: repeated calls need the rest.
  const std::size_t room = key.collective.counts.empty() ? PlanCache::kCapacity : PlanCache::kCapacity / 4;
  if (Plan* cached = plans.insert(*owned, room)) return cached;
  return owned->get();
}

Result<Plan*> CommunicatorImpl::plan_for(const Request& request, const CallOptions& options, std::unique_ptr<Plan>* owned) {
  const auto key = check(request, options);
  if (!key.ok()) return key.status();
  const auto plan = find_plan(*key, owned);
  if (plan.ok() && *owned == nullptr) {
    last_plan_.store(*plan, std::memory_order_release);
    last_of_kind_[static_cast<std::size_t>(request.kind)].store(*plan, std::memory_order_release);
  }
  return plan;
}

Plan* CommunicatorImpl::repeated(const Request& request, const CallOptions& options) noexcept {
  Plan* plan = last_of_kind_[static_cast<std::size_t>(request.kind)].load(std::memory_order_acquire);
  if (plan == nullptr || options.timeout || options.algorithm != nullptr || executor_->closed()) return nullptr;
  const auto placement = plan->buffers.placement(request.input, request.output);
  if (placement != CallBuffers::Placement::apart && placement != CallBuffers::Placement::in_place) return nullptr;
  const bool in_place = placement == CallBuffers::Placement::in_place;
  const PlanKey& key = plan->key;
  if (key.in_place != in_place || key.algorithm != nullptr || !is_collective_of(request, key.collective)) return nullptr;
  if (last_plan_.load(std::memory_order_relaxed) != plan) last_plan_.store(plan, std::memory_order_release);
  return plan;
}

Status CommunicatorImpl::estimate(const Request& request, const CallOptions& options) {
  if (is_message(request.kind)) {
    Status status = check_message(request, options);
    if (status.ok()) *options.estimate_us += estimated_us(request);
    return status;
  }
  auto key = check(request, options);
  if (!key.ok()) return key.status();
  std::unique_ptr<Plan> owned;
  std::vector<std::size_t> counts;
  if (averages_integers(request)) key = sum_of_parts(*key, counts);
  const auto plan = find_plan(*key, &owned);
  if (!plan.ok()) return plan.status();
  *options.estimate_us += (*plan)->predicted_us;
  return {};
}

Status CommunicatorImpl::run(const Request& request, const CallOptions& options) {
  if (options.estimate_us != nullptr) return estimate(request, options);
  if (Operation::in_callback()) return waits_in_callback(call_name(request.kind));
  if (static_cast<int>(request.kind) >= kCollectiveKindCount || averages_integers(request)) {
    const auto operation = prepare(request, options);
    return operation.ok() ? run(*operation) : operation.status();
  }
  const Request& call = request.kind == CollectiveKind::barrier ? barrier_ : request;
  std::unique_ptr<Plan> owned;
  Plan* plan = repeated(call, options);
  if (plan == nullptr) {
    const auto found = plan_for(call, options, &owned);
    if (!found.ok()) return found.status();
    plan = *found;
  }
  if (owned == nullptr) {
    auto outcome = executor_->try_express(*plan, options.timeout.value_or(options_.timeout), call.input, call.output);
    if (outcome) return *std::move(outcome);
  }
  const auto operation = acquire(call, options, plan, std::move(owned));
  return operation.ok() ? run(*operation) : operation.status();
}

Status CommunicatorImpl::run(Operation* operation) {
  executor_->run(operation);
  // Between group_begin() and group_end() the operation has not started yet; group_end() returns its outcome.
  Status outcome = operation->done() ? operation->outcome() : Status();
  operation->drop_reference();
  return outcome;
}

Result<Work> CommunicatorImpl::start(const Request& request, const CallOptions& options) {
  if (options.estimate_us != nullptr) {
    Status status = estimate(request, options);
    if (!status.ok()) return status;
    return Work();
  }
  const auto operation = prepare(request, options);
  if (!operation.ok()) return operation.status();
  executor_->post(*operation);
  return Work(*operation);
}

Result<Operation*> CommunicatorImpl::prepare(const Request& request, const CallOptions& options) {
  if (is_message(request.kind)) {
    if (Status status = check_message(request, options); !status.ok()) return status;
    return executor_->acquire_message(message_of(request), deadline_after(options.timeout.value_or(options_.timeout)));
  }
  if (averages_integers(request)) return prepare_average(request, options);
  const Request& call = request.kind == CollectiveKind::barrier ? barrier_ : request;
  std::unique_ptr<Plan> owned;
  const auto plan = plan_for(call, options, &owned);
  if (!plan.ok()) return plan.status();
  return acquire(call, options, *plan, std::move(owned));
}

Result<Operation*> CommunicatorImpl::prepare_average(const Request& request, const CallOptions& options) {
  const auto average = check(request, options);
  if (!average.ok()) return average.status();
  const int ranks = executor_->topology().ranks();
  const int rank = executor_->rank();
  const DataType type = request.type;
  const std::size_t each = std::max<std::size_t>(size_of(type), 1);  // check() has refused types of no size
  const std::size_t numbers = average->collective.message_bytes(ranks) / each;
  constexpr std::size_t kMostBytes = 2 * sizeof(std::int64_t);  // of the parts of a number
  if (numbers > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / kMostBytes)
    return no_memory(request, std::numeric_limits<std::size_t>::max());
  std::vector<std::size_t> counts;
  PlanKey key = sum_of_parts(*average, counts);
  const Collective& sum = key.collective;
  const std::size_t part_bytes = key.parts_of_number() * size_of(sum.type);
  // In place: the result of a reduce_scatter lies at this rank's share.
  const std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[std::max<std::size_t>(numbers * part_bytes, 1)]);
  if (memory == nullptr) return no_memory(request, numbers * part_bytes);
  std::byte* const result = memory.get() + (deals_in_shares(sum.kind) ? share_offset_bytes(sum, ranks, rank) : 0);

  const CallBuffers buffers = call_buffers(sum, ranks, rank);
  key.in_place = buffers.placement(memory.get(), result) == CallBuffers::Placement::in_place;
  std::unique_ptr<Plan> owned;
  const auto plan = find_plan(key, &owned);
  if (!plan.ok()) return plan.status();
  if (owned == nullptr) last_plan_.store(*plan, std::memory_order_release);
  split_into_parts(type, request.input, numbers, ranks, memory.get());
  Request parts = request;
  parts.input = memory.get();
  parts.output = result;
  const auto operation = acquire(parts, options, *plan, std::move(owned));
  if (!operation.ok()) return operation;
  const std::size_t results = call_buffers(average->collective, ranks, rank).output_bytes / size_of(type);
  (*operation)->set_last_step([memory, type, result, results, ranks, output = request.output] {
    average_of_parts(type, result, results, ranks, output);
  });
  return operation;
}

Result<Operation*> CommunicatorImpl::acquire(const Request& request, const CallOptions& options, Plan* plan,
                                             std::unique_ptr<Plan> owned) {
  const std::size_t scratch_bytes = plan->scratch_bytes;
  Operation* operation = executor_->acquire(plan, std::move(owned), deadline_after(options.timeout.value_or(options_.timeout)),
                                            request.input, request.output);
  if (operation == nullptr) return no_memory(request, scratch_bytes);
  return operation;
}

CallReport CommunicatorImpl::last_call() const {
  const Plan* plan = last_plan_.load(std::memory_order_relaxed);
  if (plan == nullptr) return {};
  return {plan->algorithm, executor_->transports_of(*plan), plan->predicted_us};
}

}  // namespace shoal::internal
