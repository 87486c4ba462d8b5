#include "tests/fault/overlay_simulation.h"

#include <algorithm>
#include <span>
#include <variant>

namespace shoal::testing {
namespace {

std::vector<int> host_of_rank(const OverlaySimulation::Options& options) {
  std::vector<int> hosts;
  for (int rank = 0; rank < options.hosts * options.ranks_per_host; ++rank) hosts.push_back(rank / options.ranks_per_host);
  return hosts;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

OverlaySimulation::OverlaySimulation(const Options& options)
    : options_(options),
      table_(host_of_rank(options)),
      random_(options.seed),
      boards_(static_cast<std::size_t>(options.hosts)) {
  processes_.resize(static_cast<std::size_t>(ranks()));
  for (int rank = 0; rank < ranks(); ++rank) {
    HostControl::Options control;
    control.lost_after = options.lost_after;
    process(rank).control = std::make_unique<HostControl>(table_, rank, control, now_);
    wake_at(rank, now_ + std::chrono::microseconds(random(1000)));
  }
}

OverlaySimulation::Duration OverlaySimulation::delay() {
  const auto range = static_cast<std::uint64_t>((options_.most_delay - options_.least_delay).count()) + 1;
  return options_.least_delay + Duration(static_cast<Duration::rep>(random(range)));
}

void OverlaySimulation::at(Time time, std::function<void()> what) { events_.push({time, ++numbers_, std::move(what)}); }

void OverlaySimulation::to_process(Time time, int rank, std::function<void()> what) {
  at(time, [this, rank, what = std::move(what)] {
    Process& it = process(rank);
    if (!it.alive) return;
    if (it.stopped) {
      it.held.push_back(what);
      return;
    }
    wake(rank);  // it looks at the board first
    what();
    act(rank);
    sleep(rank);
  });
}

void OverlaySimulation::run(Duration time) {
  const Time until = now_ + time;
  while (!events_.empty() && events_.top().at <= until) {
    now_ = std::max(now_, events_.top().at);
    const auto what = events_.top().what;
    events_.pop();
    what();
  }
  now_ = until;
}

void OverlaySimulation::wake_at(int rank, Time time) {
  if (time >= process(rank).wake_at) return;
  process(rank).wake_at = time;
  at(time, [this, rank, time] {
    Process& it = process(rank);
    if (it.wake_at == time) it.wake_at = Time::max();
    if (it.alive && !it.stopped) wake(rank);
  });
}

void OverlaySimulation::wake_others(int rank) {
  for (const int other : table_.ranks_of(table_.host_of(rank))) {
    if (other != rank) wake_at(other, now_ + options_.board_delay);
  }
}

void OverlaySimulation::wake(int rank) {
  Process& it = process(rank);
  Board& board = board_of(rank);
  it.control->look(board.claim, now_);  // first: it may have been stopped, and another is the keeper
  act(rank);
  for (; it.cursor < board.log.size(); ++it.cursor) {
    const auto [writer, message] = board.log[it.cursor];  // a copy: the log may grow
    if (writer == rank) continue;
    if (const auto news = it.control->on_board(message, now_)) deliver(rank, *news);
    act(rank);
  }
  it.control->look(board.claim, now_);
  act(rank);
  sleep(rank);
}

void OverlaySimulation::sleep(int rank) {
  if (const Time next = process(rank).control->next_time(); next != Time::max()) wake_at(rank, std::max(next, now_));
}

void OverlaySimulation::act(int rank) {
  Process& it = process(rank);
  Board& board = board_of(rank);
  while (!it.control->actions().empty()) {
    OverlayActions actions = std::exchange(it.control->actions(), {});
    if (actions.claim && *actions.claim == board.claim.term + 1) {
      board.claim = {*actions.claim, rank, 0};
      it.control->look(board.claim, now_);
      wake_others(rank);
    }
    if (actions.beat && board.claim.rank == rank) ++board.claim.beat;
    for (const OverlayMessage& message : actions.publish) {
      board.log.emplace_back(rank, message);
      deliver(rank, message);
      wake_others(rank);
    }
    for (const auto& [host, bytes] : actions.send) send(rank, host, bytes);
    for (const Endpoint& peer : actions.disconnect) {
      const auto known = it.peers.find(peer.host);
      if (known != it.peers.end() && known->second.first == peer.rank) disconnect(rank, peer.host);
    }
    for (const Endpoint& peer : actions.connect) connect(rank, peer.rank);
  }
}

void OverlaySimulation::write(int rank, const OverlayMessage& message) {
  board_of(rank).log.emplace_back(rank, message);
  deliver(rank, message);
  process(rank).control->on_board(message, now_);
  act(rank);
  wake(rank);
  wake_others(rank);
}

void OverlaySimulation::abort(int rank, std::uint64_t group) {
  write(rank, Notice{rank, ++notices_, {group, 1}, 1, bytes_of("x")});
}

std::uint64_t OverlaySimulation::notify(int rank) {
  write(rank, Notice{rank, ++notices_, {}, 9, {}});
  return notices_;
}

void OverlaySimulation::farewell(int rank, std::uint64_t group, const std::string& history) {
  write(rank, RankFacts{RankFacts::Kind::farewell, {group, 1}, bytes_of(history), RankRuns::from_to(rank, rank)});
}

void OverlaySimulation::leave(int rank) {
  write(rank, RankFacts{RankFacts::Kind::goodbye, {}, {}, RankRuns::from_to(rank, rank)});
  process(rank).control->flush();
  act(rank);
  end(rank, options_.least_delay, true);
}

void OverlaySimulation::kill(int rank) {
  if (process(rank).alive) end(rank, delay(), false);
}

void OverlaySimulation::end(int rank, Duration notice, bool in_order) {
  Process& it = process(rank);
  it.alive = false;
  it.held.clear();
  const Board& board = board_of(rank);
  for (auto& [host, peer] : std::exchange(it.peers, {})) {
    const auto& [other, connection] = peer;
    connection->open = false;
    const Time delivered = std::max(now_ + notice, connection->delivered_until[other > rank ? 1 : 0]);
    const Time seen = in_order ? delivered : now_ + notice;
    if (!in_order)
      connection->cut_at = now_ + Duration(static_cast<Duration::rep>(random(static_cast<std::uint64_t>(notice.count()) + 1)));
    report_lost(seen, rank, other, connection, board.off);
  }
  for (const int other : table_.ranks_of(table_.host_of(rank))) {
    if (other == rank || in_order || board.off) continue;
    to_process(now_ + options_.board_delay, other, [this, other, rank] {
      const bool known = !process(other).control->facts().is_present(rank);
      if (!known) process(other).control->on_process_ended(rank, {}, now_);
    });
  }
}

void OverlaySimulation::stop(int rank) { process(rank).stopped = true; }

void OverlaySimulation::resume(int rank) {
  Process& it = process(rank);
  it.stopped = false;
  for (auto& what : std::exchange(it.held, {})) to_process(now_, rank, std::move(what));
  wake_at(rank, now_);
}

void OverlaySimulation::switch_off(int host) {
  boards_[static_cast<std::size_t>(host)].off = true;
  for (const int rank : table_.ranks_of(host)) {
    if (process(rank).alive) end(rank, options_.lost_after, false);
  }
}

void OverlaySimulation::connect(int from, int to) {
  at(now_ + delay(), [this, from, to] {
    Process& its = process(to);
    const Endpoint peer{table_.host_of(to), to};
    const auto answer = [&](Duration after, auto what) {
      to_process(now_ + after, from, [this, from, what] { what(*process(from).control); });
    };
    if (board_of(to).off) {
      answer(options_.connect_timeout, [this, peer](HostControl& control) { control.on_silent(peer, now_); });
    } else if (its.alive && its.stopped) {
      answer(options_.connect_timeout, [this, peer](HostControl& control) { control.on_unanswered(peer, now_); });
    } else if (!its.alive) {
      answer(delay(), [this, peer](HostControl& control) { control.on_refused(peer, now_); });
    } else if (const auto keeper = its.control->redirect()) {
      answer(delay(), [this, peer, keeper](HostControl& control) { control.on_redirected(peer, *keeper, now_); });
    } else {
      establish(from, to);
    }
  });
}

void OverlaySimulation::establish(int a, int b) {
  const auto known = process(a).peers.find(table_.host_of(b));
  if (!process(a).alive) return;
  if (process(a).stopped) return process(a).held.push_back([this, a, b] { connect(a, b); });
  if (known != process(a).peers.end() && known->second.first == b && known->second.second->open) return;
  const auto connection = std::make_shared<Connection>();
  for (const auto& [own, other] : {std::pair(a, b), std::pair(b, a)}) {
    const int host = table_.host_of(other);
    const auto before = process(own).peers.find(host);
    const auto replaced = before == process(own).peers.end() ? nullptr : before->second.second;
    const int replaced_rank = replaced == nullptr ? -1 : before->second.first;
    process(own).peers[host] = {other, connection};
    wake(own);
    process(own).control->on_connected({host, other});
    if (replaced != nullptr && replaced->open) {  // the real layer is told to disconnect it
      replaced->open = false;
      report_lost(now_ + delay(), own, replaced_rank, replaced, false);
    }
    act(own);
  }
}

void OverlaySimulation::disconnect(int rank, int host) {
  const auto known = process(rank).peers.find(host);
  if (known == process(rank).peers.end()) return;
  const auto [other, connection] = known->second;
  process(rank).peers.erase(known);
  if (!std::exchange(connection->open, false)) return;
  const Time seen = std::max(now_ + delay(), connection->delivered_until[other > rank ? 1 : 0]);
  report_lost(seen, rank, other, connection, false);
}

void OverlaySimulation::report_lost(Time time, int from, int to, const std::shared_ptr<Connection>& connection, bool silent) {
  to_process(time, to, [this, to, connection, silent, peer = Endpoint{table_.host_of(from), from}] {
    Process& its = process(to);
    const auto known = its.peers.find(peer.host);
    if (known == its.peers.end() || known->second.second != connection) return;  // it has been replaced
    its.peers.erase(known);
    its.control->on_lost(peer, silent ? options_.lost_after : Duration::zero(), now_);
  });
}

void OverlaySimulation::send(int rank, int host, const std::shared_ptr<const std::vector<std::byte>>& bytes) {
  const auto known = process(rank).peers.find(host);
  if (known == process(rank).peers.end()) return;
  ++board_of(rank).sent;
  const auto [other, connection] = known->second;
  Time& last = connection->delivered_until[other > rank ? 1 : 0];
  last = std::max(last, now_ + delay());
  to_process(last, other, [this, other = other, connection = connection, from = table_.host_of(rank), bytes, arrives = last] {
    if (arrives <= connection->cut_at && !process(other).control->on_message(from, *bytes, now_)) std::abort();
  });
}

void OverlaySimulation::reset_sent() {
  for (Board& board : boards_) board.sent = 0;
}

}  // namespace shoal::testing
