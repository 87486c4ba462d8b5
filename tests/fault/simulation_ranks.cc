#include "tests/fault/simulation_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "src/progress/drive.h"

namespace shoal::testing {

using Clock = SimulatedClock;

HubEnds::HubEnds(LoopbackHub& hub, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::move(hub.make_transport(rank)).value());
    addresses.push_back(transports.back()->address());
  }
}

namespace {

constexpr unsigned char kReuseMark = 0x5A;
constexpr std::chrono::microseconds kLongStep{500};

struct ConnectedEnd {
  std::unique_ptr<Transport> transport;
  std::vector<std::unique_ptr<Link>> links;
};

/// The other ranks of the node of `rank`.
std::vector<int> local_peers(int rank, const Topology& topology) {
  std::vector<int> peers;
  for (int peer = 0; peer < topology.ranks(); ++peer) {
    if (topology.link_class(rank, peer) == LinkClass::shared_memory) peers.push_back(peer);
  }
  return peers;
}

/// Connects the ranks in one thread: while one rank waits for its peers, the next one connects. `topology`: only with ranks of
/// other nodes of it.
std::vector<ConnectedEnd> connect_all(LoopbackHub& hub, int ranks, const Topology* topology = nullptr) {
  HubEnds ends(hub, ranks);
  std::vector<ConnectedEnd> connected(static_cast<std::size_t>(ranks));
  int next = 0;
  const std::function<void()> connect_next = [&] {
    if (next == ranks) return;
    const auto rank = static_cast<std::size_t>(next++);
    std::vector<int> peers;
    std::vector<std::string> addresses;
    for (int peer = 0; peer < ranks; ++peer) {
      if (static_cast<std::size_t>(peer) == rank) continue;
      if (topology != nullptr && topology->link_class(static_cast<int>(rank), peer) != LinkClass::network) continue;
      peers.push_back(peer);
      addresses.push_back(ends.addresses[static_cast<std::size_t>(peer)]);
    }
    auto links = ends.transports[rank]->connect(peers, addresses, Simulated::now() + std::chrono::seconds(30));
    EXPECT_TRUE(links.ok()) << links.status().to_string();
    connected[rank] = {std::move(ends.transports[rank]), std::move(links).value()};
  };
  Simulated::set_meanwhile(connect_next);
  while (next < ranks) connect_next();
  Simulated::set_meanwhile({});
  return connected;
}

}  // namespace

std::vector<std::shared_ptr<Executor>> make_executors(const Scenario& scenario, LoopbackHub& data_hub,
                                                      LoopbackHub& control_hub) {
  auto data = connect_all(data_hub, scenario.ranks());
  auto control = connect_all(control_hub, scenario.ranks(), scenario.board ? &scenario.topology : nullptr);
  std::vector<std::shared_ptr<Executor>> executors;
  for (int rank = 0; rank < scenario.ranks(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    ProgressEngineParts parts;
    parts.rank = rank;
    parts.topology = scenario.topology;
    parts.device = &host_device();
    parts.cores = 1;
    parts.tile_bytes = scenario.tile_bytes;
    parts.links = std::move(data[at].links);
    parts.transport_of_link.assign(parts.links.size(), 0);
    parts.transports.push_back(std::move(data[at].transport));
    parts.control = control[at].links.empty()
                        ? std::make_unique<ControlPlane>()
                        : std::make_unique<ControlPlane>(std::move(control[at].transport), std::move(control[at].links));
    if (const auto local = local_peers(rank, scenario.topology); scenario.board && !local.empty())
      parts.control->add(std::make_unique<LocalControl>(*parts.transports.back(), rank, local));
    auto engine = std::make_shared<ProgressEngine>(std::move(parts));
    executors.push_back(
        std::move(Executor::create(engine, Group::whole(engine->parts().rank, engine->parts().topology))).value());
  }
  return executors;
}

SimulatedRank::SimulatedRank(const Scenario& scenario, std::shared_ptr<Executor> executor)
    : scenario_(scenario),
      rank_(executor->rank()),
      executor_(std::move(executor)),
      engine_(executor_->engine()),
      random_(scenario.seed * 1031 + static_cast<std::uint64_t>(rank_)),
      calls_(scenario.calls.size()) {
  lock_ = DriverLock(*engine_);
  think(0);
}

SimulatedRank::~SimulatedRank() {
  for (MadeCall& call : calls_) {
    if (call.operation != nullptr) call.operation->drop_reference();
  }
}

bool SimulatedRank::is_awaited(std::size_t index) const {
  return !scenario_.calls[index].model.async && !calls_[index].ended_at;
}

// The condition of the progress thread.
bool SimulatedRank::needs_driver() const { return engine_->busy() || engine_->unsent(); }

bool SimulatedRank::calls_now() const {
  if (made_ == calls_.size() || absent_ || Simulated::now() < makes_next_at_) return false;
  return made_ == 0 || !is_awaited(made_ - 1);
}

bool SimulatedRank::is_ready() const {
  if (has_left() || Simulated::now() < busy_until_) return false;
  if (calls_now()) return true;
  if (phase_ == Phase::idle) return needs_driver();
  if (phase_ != Phase::asleep) return true;
  return Simulated::now() >= wakes_at_ ||
         std::ranges::any_of(descriptors_, [](const pollfd& each) { return Simulated::is_readable(each.fd); });
}

Clock::time_point SimulatedRank::next_event() const {
  auto next = Clock::time_point::max();
  if (has_left()) return next;
  if (made_ < calls_.size() && !absent_ && (made_ == 0 || !is_awaited(made_ - 1))) next = makes_next_at_;
  if (phase_ == Phase::asleep) {
    next = std::min(next, wakes_at_);
    for (const pollfd& each : descriptors_) next = std::min(next, Simulated::due(each.fd).value_or(next));
  }
  if (busy_until_ > Simulated::now()) return std::max(next == Clock::time_point::max() ? busy_until_ : next, busy_until_);
  return next;
}

char SimulatedRank::step() {
  const auto begin = Simulated::now();
  char did = 0;
  // Driving and making calls alternate at random where both are possible.
  if (calls_now() && (phase_ == Phase::idle || random_() % 2 == 0)) {
    make_calls();
    did = 'c';
  } else {
    did = drive();
  }
  note_ends();
  // The step waited for room on the control plane. The other ranks make steps meanwhile, so the clock goes back.
  if (Simulated::now() - begin > kLongStep) {
    busy_until_ = Simulated::now();
    Simulated::go_back_to(begin);
  }
  return did;
}

// Sets the time of the call `next`.
void SimulatedRank::think(std::size_t next) {
  makes_next_at_ = Simulated::now() + std::chrono::nanoseconds(scenario_.think_ns == 0 ? 0 : random_() % scenario_.think_ns);
  if (rank_ != scenario_.culprit || next != scenario_.at_call) return;
  if (scenario_.fault == Fault::late) makes_next_at_ += scenario_.fault_time;
  absent_ = scenario_.fault == Fault::absent;
}

void SimulatedRank::make_call(std::size_t index) {
  const SimulatedCall& call = scenario_.call(rank_, index);
  MadeCall& made = calls_[index];
  made.buffers = std::make_unique<ModelBuffers>(call.model, rank_);
  made.made_at = Simulated::now();
  std::vector<std::size_t> counts;
  const Collective collective = call.model.collective(rank_, counts);
  const PlanKey key{.collective = collective, .in_place = made.buffers->in_place(), .algorithm = call.algorithm->name.data()};
  const auto program = build_program(*call.algorithm, scenario_.topology, collective, rank_);
  auto plan = std::move(make_plan(executor_->plan_context(), key, *program)).value();
  Plan* raw = plan.get();
  made.operation =
      executor_->acquire(raw, std::move(plan), made.made_at + scenario_.timeout, made.buffers->input(), made.buffers->output());
}

void SimulatedRank::post(std::size_t index) { executor_->post(calls_[index].operation); }

// Makes the next call; sometimes also the one after it, which is posted first, as two threads may do.
void SimulatedRank::make_calls() {
  const std::size_t first = made_++;
  make_call(first);
  think(made_);
  const bool two = scenario_.calls[first].model.async && random_() % 8 == 0 && calls_now();
  if (two) {
    make_call(made_++);
    think(made_);
    post(first + 1);
  }
  post(first);
}

char SimulatedRank::drive() {
  switch (phase_) {
    case Phase::idle:
      phase_ = Phase::look;
      [[fallthrough]];
    case Phase::look:
      if (engine_->progress()) {
        engine_->check_if_overdue();
        return 'm';
      }
      if (!needs_driver()) {
        phase_ = Phase::idle;
        return 'i';
      }
      if (random_() % 4 != 0) phase_ = Phase::check;  // else it spins
      return 'l';
    case Phase::check:
      phase_ = engine_->check() ? Phase::look : Phase::announce;
      return phase_ == Phase::look ? 'C' : 'k';
    case Phase::announce:
      phase_ = Phase::look_once_more;
      if (engine_->prepare_wait()) return 'a';
      stay_awake();
      return 'A';
    case Phase::look_once_more:
      if (engine_->progress() || !needs_driver()) {
        stay_awake();
        return 'M';
      }
      phase_ = Phase::asleep;
      wakes_at_ = engine_->next_check();
      descriptors_.clear();
      engine_->append_wait_fds(descriptors_);
      return 's';
    case Phase::asleep:
      for (pollfd& each : descriptors_) each.revents = Simulated::is_readable(each.fd) ? POLLIN : 0;
      engine_->finish_wait(descriptors_);
      phase_ = Phase::look;
      return 'w';
  }
  return '?';
}

// Cancels a sleep that was announced.
void SimulatedRank::stay_awake() {
  engine_->finish_wait({});
  phase_ = Phase::look;
}

void SimulatedRank::note_ends() {
  for (std::size_t k = 0; k < made_; ++k) {
    MadeCall& call = calls_[k];
    if (call.ended_at || !call.operation->done()) continue;
    call.ended_at = Simulated::now();
    call.outcome = call.operation->outcome();
    ++ended_;
    if (call.outcome.ok()) call.wrong = call.buffers->check();
    // The call has ended, so the program may reuse its buffers. Overwriting them here reveals later reads and writes.
    const CallBuffers& bytes = call.operation->plan->buffers;
    if (call.buffers->input() != nullptr) std::memset(const_cast<void*>(call.buffers->input()), kReuseMark, bytes.input_bytes);
    if (call.buffers->output() != nullptr) std::memset(call.buffers->output(), kReuseMark, bytes.output_bytes);
  }
}

void SimulatedRank::abort(const std::string& reason) {
  executor_->close({StatusCode::aborted, reason});
  if (phase_ == Phase::idle) engine_->check();  // as ProgressEngine::tend_to_closed() does
  note_ends();
}

void SimulatedRank::bury() {
  executor_->close({StatusCode::aborted, "the rank has been killed"});
  while (engine_->busy()) engine_->progress();
  made_ = calls_.size();
  ended_ = calls_.size();
  leave();
}

void SimulatedRank::leave() {
  while (engine_->busy()) engine_->progress();
  if (phase_ == Phase::look_once_more || phase_ == Phase::asleep) engine_->finish_wait({});
  engine_->check();                    // as unlock() does; it may have more to send
  engine_->parts().control->finish();  // the progress thread would send the rest
  lock_.unlock();
  executor_->shut_down();
  for (MadeCall& call : calls_) {
    if (call.operation == nullptr) continue;
    const std::span output(static_cast<const unsigned char*>(call.buffers->output()),
                           call.buffers->output() == nullptr ? 0 : call.operation->plan->buffers.output_bytes);
    const bool untouched = std::ranges::all_of(output, [](unsigned char byte) { return byte == kReuseMark; });
    if (call.ended_at && !untouched) call.wrong += "; its output was written after it had ended";
    std::exchange(call.operation, nullptr)->drop_reference();
  }
  executor_.reset();
  engine_.reset();
}

}  // namespace shoal::testing
