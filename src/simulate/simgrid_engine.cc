#include "src/simulate/simgrid_engine.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>

#include <simgrid/s4u.hpp>

namespace shoal {
namespace {

namespace s4u = simgrid::s4u;

// The simulated clock counts microseconds, not seconds, because SimGrid treats times closer than a billionth as equal.
constexpr double kEngineBytesPerUs = 1000;  // of a GB/s
constexpr double kFlopsPerUs = 1e3;         // of a simulated core; SimGrid rounds small amounts of work

/// The run of one graph, in the child process.
class Simulation {
 public:
  Simulation(const TaskGraph& graph, std::function<void(double)> progress) : graph_(graph), progress_(std::move(progress)) {}

  GraphRun run() {
    // Plain fluid sharing: the corrections for the TCP of 2008's wide-area networks are off.
    std::array arguments{std::string("shoal"),
                         std::string("--log=root.thresh:critical"),
                         std::string("--cfg=network/model:CM02"),
                         std::string("--cfg=network/TCP-gamma:0"),
                         std::string("--cfg=network/crosstraffic:0"),
                         std::string("--cfg=network/weight-S:0"),
                         std::string("--cfg=network/latency-factor:1"),
                         std::string("--cfg=network/bandwidth-factor:1")};
    std::array<char*, arguments.size() + 1> argv{};
    for (std::size_t i = 0; i < arguments.size(); ++i) argv[i] = arguments[i].data();
    int argc = static_cast<int>(arguments.size());
    s4u::Engine engine(&argc, argv.data());
    make_platform();

    missing_.reserve(graph_.tasks.size());
    for (const TaskGraph::Task& task : graph_.tasks) missing_.push_back(task.missing);
    workers_.resize(graph_.workers.size());
    links_.resize(graph_.links);
    run_.worker_us.assign(graph_.workers.size(), 0);
    s4u::Activity::on_completion_cb([this](const s4u::Activity& activity) { on_completion(activity); });
    for (std::uint32_t task = 0; task < missing_.size(); ++task) {
      if (missing_[task] == 0) ready_.push_back(task);
    }
    settle();
    engine.run();
    if (done_ != missing_.size()) throw std::runtime_error(fmt::format("{} tasks wait forever", missing_.size() - done_));
    run_.total_us = run_.worker_us.empty() ? 0 : *std::ranges::max_element(run_.worker_us);
    return run_;
  }

 private:
  struct Worker {
    bool busy = false;
    int flows = 0;
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> work;
    std::queue<std::uint32_t> links;  // links that have a flow to send and wait for a slot
  };
  using Link = std::queue<std::uint32_t>;  // tasks whose flow has not left; the first may be in flight
  enum class Stage : std::uint8_t { work, flow, latency };
  struct Running {
    std::uint32_t task = 0;
    Stage stage = Stage::work;
    s4u::ActivityPtr activity;
  };
  using Delay = std::pair<s4u::Host*, s4u::Host*>;  // two hosts at that distance

  void make_platform() {
    auto* zone = s4u::create_star_zone("cluster");
    std::vector<s4u::Link*> links;
    for (const TaskGraph::Wire& wire : graph_.wires) {
      auto* link = zone->create_link(fmt::format("wire{}", links.size()), wire.gbyte_s * kEngineBytesPerUs);
      if (wire.flow_share > 0) {
        link->set_sharing_policy(s4u::Link::SharingPolicy::NONLINEAR, [share = wire.flow_share](double capacity, int flows) {
          return capacity / (1 + share * std::max(flows - 1, 0));
        });
      }
      links.push_back(link->seal());
    }
    const auto route = [&](const TaskGraph::Route& wires) {
      std::vector<s4u::LinkInRoute> in_route;
      for (const std::uint32_t wire : wires) in_route.emplace_back(links[wire]);
      return in_route;
    };
    // A host for each direction of each port, so that flows of a folded node to itself cross its wires.
    for (std::size_t i = 0; i < graph_.sources.size(); ++i) {
      auto* source = zone->create_host(fmt::format("source{}", i), kFlopsPerUs)->seal();
      auto* sink = zone->create_host(fmt::format("sink{}", i), kFlopsPerUs)->seal();
      zone->add_route(source->get_netpoint(), nullptr, nullptr, nullptr, route(graph_.sources[i]), false);
      zone->add_route(nullptr, sink->get_netpoint(), nullptr, nullptr, route(graph_.sinks[i]), false);
      sources_.push_back(source);
      sinks_.push_back(sink);
    }
    // Latencies are separate links and not part of the wires: a flow must release its wire to the next flow before it has
    // arrived.
    for (const TaskGraph::Task& task : graph_.tasks) {
      if (task.latency_us <= 0 || delays_.contains(task.latency_us)) continue;
      const std::size_t number = delays_.size();
      auto* link = zone->create_link(fmt::format("delay{}", number), 1e12);
      link->set_sharing_policy(s4u::Link::SharingPolicy::FATPIPE)->set_latency(task.latency_us)->seal();
      auto* from = zone->create_host(fmt::format("before{}", number), kFlopsPerUs)->seal();
      auto* to = zone->create_host(fmt::format("after{}", number), kFlopsPerUs)->seal();
      zone->add_route(from->get_netpoint(), nullptr, nullptr, nullptr, {s4u::LinkInRoute(link)}, false);
      zone->add_route(nullptr, to->get_netpoint(), nullptr, nullptr, {s4u::LinkInRoute(link)}, false);
      delays_[task.latency_us] = {from, to};
    }
    for (const TaskGraph::Cpu& cpu : graph_.cpus) {
      cpus_.push_back(zone->create_host(fmt::format("cpu{}", cpus_.size()), kFlopsPerUs)->set_core_count(cpu.cores)->seal());
    }
    zone->seal();
  }

  void on_completion(const s4u::Activity& activity) {
    const auto it = running_.find(&activity);
    if (it == running_.end()) return;
    last_ = std::move(it->second);  // SimGrid still uses the activity after this notification
    running_.erase(it);
    const std::uint32_t task = last_.task;
    const std::uint32_t number = graph_.tasks[task].worker;
    if (last_.stage == Stage::work) {
      workers_[number].busy = false;
      idle_.push_back(number);
      begin_flow(task);
    } else if (last_.stage == Stage::flow) {
      Link& link = links_[graph_.tasks[task].link];
      link.pop();
      --workers_[number].flows;
      if (!link.empty()) workers_[number].links.push(graph_.tasks[task].link);
      start_flows(number);
      begin_latency(task);
    } else {
      finish(task);
    }
    settle();
  }

  /// Starts all activities that can start. Workers choose last, when everything that became ready is known.
  void settle() {
    while (!ready_.empty()) {
      const std::uint32_t task = ready_.back();
      ready_.pop_back();
      if (graph_.tasks[task].work_us > 0) {
        workers_[graph_.tasks[task].worker].work.push(task);
        idle_.push_back(graph_.tasks[task].worker);
      } else {
        begin_flow(task);
      }
    }
    for (const std::uint32_t number : idle_) start_work(number);
    idle_.clear();
  }

  void start_work(std::uint32_t number) {
    Worker& worker = workers_[number];
    if (worker.busy || worker.work.empty()) return;
    worker.busy = true;
    const std::uint32_t task = worker.work.top();
    worker.work.pop();
    auto exec = s4u::Exec::init();
    exec->set_flops_amount(graph_.tasks[task].work_us * kFlopsPerUs);
    exec->set_host(cpus_[graph_.workers[number].cpu]);
    running_[exec.get()] = {task, Stage::work, exec};
    exec->start();
  }

  void begin_flow(std::uint32_t task) {
    if (graph_.tasks[task].source == TaskGraph::kNone) {
      finish(task);
      return;
    }
    const std::uint32_t number = graph_.tasks[task].worker;
    Link& link = links_[graph_.tasks[task].link];
    link.push(task);
    if (link.size() > 1) return;
    workers_[number].links.push(graph_.tasks[task].link);
    start_flows(number);
  }

  void start_flows(std::uint32_t number) {
    Worker& worker = workers_[number];
    while (!worker.links.empty() && worker.flows < graph_.workers[number].window) {
      const std::uint32_t task = links_[worker.links.front()].front();
      worker.links.pop();
      ++worker.flows;
      const TaskGraph::Task& what = graph_.tasks[task];
      start_comm(task, Stage::flow, sources_[what.source], sinks_[what.sink], what.bytes);
    }
  }

  void begin_latency(std::uint32_t task) {
    const auto it = delays_.find(graph_.tasks[task].latency_us);
    if (it == delays_.end()) {
      finish(task);
    } else {
      start_comm(task, Stage::latency, it->second.first, it->second.second, 1);
    }
  }

  void start_comm(std::uint32_t task, Stage stage, s4u::Host* from, s4u::Host* to, double bytes) {
    auto comm = s4u::Comm::sendto_init(from, to);
    comm->set_payload_size(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(bytes + 0.5)));
    running_[comm.get()] = {task, stage, comm};
    comm->start();
  }

  void finish(std::uint32_t task) {
    ++done_;
    if (done_ % 1024 == 0) progress_(static_cast<double>(done_) / static_cast<double>(missing_.size()));
    run_.worker_us[graph_.tasks[task].worker] = s4u::Engine::get_clock();
    for (std::size_t i = graph_.first_successor[task]; i < graph_.first_successor[task + 1]; ++i) {
      if (--missing_[graph_.successors[i]] == 0) ready_.push_back(graph_.successors[i]);
    }
  }

  const TaskGraph& graph_;
  std::function<void(double)> progress_;
  GraphRun run_;
  std::vector<s4u::Host*> sources_;
  std::vector<s4u::Host*> sinks_;
  std::vector<s4u::Host*> cpus_;
  std::vector<std::uint32_t> missing_;
  std::vector<std::uint32_t> ready_;
  std::vector<std::uint32_t> idle_;  // workers that may be idle
  std::vector<Worker> workers_;
  std::vector<Link> links_;
  std::map<double, Delay> delays_;  // by microseconds
  std::unordered_map<const s4u::Activity*, Running> running_;
  Running last_;
  std::size_t done_ = 0;
};

// ---- between the processes: a kind, a length in doubles or bytes, and the content ----

enum class Note : std::uint64_t { progress, result, error };

struct Header {
  Note note;
  std::uint64_t bytes;
};

bool write_all(int file, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(file, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

bool read_all(int file, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(file, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

void tell(int file, Note note, const void* data, std::size_t bytes) {
  const Header header{note, bytes};
  if (!write_all(file, &header, sizeof header) || !write_all(file, data, bytes)) _exit(1);  // the parent has stopped reading
}

/// Runs in the child. SimGrid throws, and aborts on what it considers a bug of its user.
[[noreturn]] void be_child(const TaskGraph& graph, int file) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  using Clock = std::chrono::steady_clock;
  Clock::time_point told = Clock::now();
  const auto progress = [&](double part) {
    if (Clock::now() - told < std::chrono::milliseconds(200)) return;
    told = Clock::now();
    tell(file, Note::progress, &part, sizeof part);
  };
  try {
    const GraphRun run = Simulation(graph, progress).run();
    tell(file, Note::result, run.worker_us.data(), run.worker_us.size() * sizeof(double));
  } catch (const std::exception& error) {
    tell(file, Note::error, error.what(), std::strlen(error.what()));
  }
  _exit(0);  // skips SimGrid's clean-up, which takes long, and the parent's
}

Result<GraphRun> listen(const TaskGraph& graph, int file, const std::function<void(double)>& progress) {
  Header header{};
  while (read_all(file, &header, sizeof header)) {
    if (header.note == Note::progress) {
      double part = 0;
      if (!read_all(file, &part, sizeof part)) break;
      if (progress) progress(part);
    } else if (header.note == Note::error) {
      std::string text(std::min<std::uint64_t>(header.bytes, 4096), '\0');
      if (!read_all(file, text.data(), text.size())) break;
      return Status(StatusCode::internal, "SimGrid: " + text);
    } else {
      GraphRun run;
      run.worker_us.resize(graph.workers.size());
      if (!read_all(file, run.worker_us.data(), run.worker_us.size() * sizeof(double))) break;
      for (const double us : run.worker_us) run.total_us = std::max(run.total_us, us);
      return run;
    }
  }
  return Status(StatusCode::internal, "the SimGrid process exited without a result");
}

}  // namespace

Result<GraphRun> run_on_simgrid(const TaskGraph& graph, const std::function<void(double)>& progress) {
  int ends[2];
  if (pipe(ends) != 0) return system_error("make a pipe", errno);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    be_child(graph, ends[1]);
  }
  const int fork_errno = errno;
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return system_error("start a process for SimGrid", fork_errno);
  }
  auto run = listen(graph, ends[0], progress);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!run.ok() && WIFSIGNALED(status)) {
    return Status(StatusCode::internal, fmt::format("SimGrid was killed by signal {}{}", WTERMSIG(status),
                                                    WTERMSIG(status) == SIGKILL ? ": out of memory?" : ""));
  }
  return run;
}

}  // namespace shoal
