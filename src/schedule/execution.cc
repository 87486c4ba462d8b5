#include "src/schedule/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "src/schedule/describe.h"
#include "src/schedule/layout.h"
#include "src/schedule/units.h"

namespace shoal {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};
// A chunk is this many tiles. Two are enough to distinguish a step that has begun from one that has ended, and large tiles
// from small ones.
constexpr std::uint32_t kTilesPerChunk = 2;
constexpr std::size_t kMaxNamedWaiters = 4;  // of a cycle of steps that wait for each other

/// The chunks of the memory of all ranks, numbered. In place, input and output are one message, each at its place in it.
class CellMap {
 public:
  CellMap(const Schedule& schedule, Aliasing aliasing) {
    const bool in_place = aliasing == Aliasing::in_place;
    const int ranks = static_cast<int>(schedule.programs.size());
    for (const Program& program : schedule.programs) {
      Base base;
      base.begin = size_;
      base.inputs = chunks_in(schedule.collective, Buffer::input, ranks, program.rank, program.message_chunks);
      base.outputs = chunks_in(schedule.collective, Buffer::output, ranks, program.rank, program.message_chunks);
      base.input = size_ + (in_place ? base.inputs.first : 0);
      base.output = size_ + (in_place ? base.outputs.first : base.inputs.count);
      base.scratch = size_ + (in_place ? program.message_chunks : base.inputs.count + base.outputs.count);
      size_ = base.scratch + program.scratch_chunks;
      ends_.push_back(size_);
      bases_.push_back(base);
    }
  }

  [[nodiscard]] std::uint32_t size() const { return size_; }
  /// The cells of a rank are [begin, end).
  [[nodiscard]] std::uint32_t begin(int rank) const { return bases_[static_cast<std::size_t>(rank)].begin; }
  [[nodiscard]] std::uint32_t end(int rank) const { return ends_[static_cast<std::size_t>(rank)]; }
  /// The message chunks that the buffers of `rank` hold.
  [[nodiscard]] ChunkRun inputs(int rank) const { return bases_[static_cast<std::size_t>(rank)].inputs; }
  [[nodiscard]] ChunkRun outputs(int rank) const { return bases_[static_cast<std::size_t>(rank)].outputs; }
  [[nodiscard]] std::uint32_t first(int rank, const Slice& slice) const {
    const Base& base = bases_[static_cast<std::size_t>(rank)];
    if (slice.buffer == Buffer::input) return base.input + slice.first_chunk;
    if (slice.buffer == Buffer::output) return base.output + slice.first_chunk;
    return base.scratch + slice.first_chunk;
  }

 private:
  struct Base {
    std::uint32_t begin = 0;
    std::uint32_t input = 0;
    std::uint32_t output = 0;
    std::uint32_t scratch = 0;
    ChunkRun inputs;
    ChunkRun outputs;
  };
  std::vector<Base> bases_;
  std::vector<std::uint32_t> ends_;
  std::uint32_t size_ = 0;
};

/// Symbolic values. A value is the set of ranks whose contribution to one message chunk it holds, or undefined, or spoilt:
/// once it holds a contribution twice, or contributions to different chunks, no further folding can repair it. A value may
/// have been completed, which is when an average is divided; after that nothing may be folded with it.
class Values {
 public:
  Values(std::size_t count, std::size_t ranks, bool may_repeat)
      : ranks_(ranks),
        words_per_value_((ranks + 63) / 64),
        may_repeat_(may_repeat),
        words_(count * words_per_value_),
        chunks_(count, kUndefined),
        completed_(count, false) {}

  void set(std::size_t value, int rank, std::uint32_t chunk) {
    clear(value);
    chunks_[value] = chunk;
    word(value, static_cast<std::size_t>(rank) / 64) |= std::uint64_t{1} << (rank % 64);
  }
  void spoil(std::size_t value) { chunks_[value] = kSpoilt; }
  void assign(std::size_t to, std::size_t from) {
    for (std::size_t i = 0; i < words_per_value_; ++i) word(to, i) = word(from, i);
    chunks_[to] = chunks_[from];
    completed_[to] = completed_[from];
  }
  /// Marks `value` complete. Returns the fault of doing so, or an empty string.
  std::string complete(std::size_t value) {
    if (chunks_[value] == kSpoilt) return {};
    completed_[value] = true;
    for (int rank = 0; rank < static_cast<int>(ranks_); ++rank) {
      if (!holds(value, rank)) return fmt::format("completes chunk {} without rank {}", chunks_[value], rank);
    }
    return {};
  }
  [[nodiscard]] bool completed(std::size_t value) const { return completed_[value]; }
  /// Folds `from` into `to`. Returns the fault of doing so, or an empty string.
  std::string fold(std::size_t to, std::size_t from) {
    std::string complaint;
    if (chunks_[to] == kSpoilt || chunks_[from] == kSpoilt) {
      spoil(to);
      return complaint;
    }
    if (chunks_[to] != chunks_[from]) complaint = fmt::format("folds chunk {} into chunk {}", chunks_[from], chunks_[to]);
    if (completed_[to] || completed_[from]) complaint = fmt::format("folds chunk {} after its completion", chunks_[to]);
    for (std::size_t i = 0; i < words_per_value_ && complaint.empty(); ++i) {
      const std::uint64_t twice = word(to, i) & word(from, i);
      if (twice != 0 && !may_repeat_) {
        complaint = fmt::format("folds the contribution of rank {} to chunk {} a second time",
                                i * 64 + static_cast<std::size_t>(std::countr_zero(twice)), chunks_[to]);
      }
      word(to, i) |= word(from, i);
    }
    if (!complaint.empty()) spoil(to);
    return complaint;
  }

  [[nodiscard]] bool undefined(std::size_t value) const { return chunks_[value] == kUndefined; }
  [[nodiscard]] bool spoilt(std::size_t value) const { return chunks_[value] == kSpoilt; }
  [[nodiscard]] std::uint32_t chunk(std::size_t value) const { return chunks_[value]; }
  [[nodiscard]] bool holds(std::size_t value, int rank) const {
    const std::size_t at = value * words_per_value_ + static_cast<std::size_t>(rank) / 64;
    return (words_[at] >> (rank % 64) & 1U) != 0;
  }

 private:
  static constexpr std::uint32_t kUndefined = kNone;
  static constexpr std::uint32_t kSpoilt = kNone - 1;

  std::uint64_t& word(std::size_t value, std::size_t i) { return words_[value * words_per_value_ + i]; }
  void clear(std::size_t value) {
    for (std::size_t i = 0; i < words_per_value_; ++i) word(value, i) = 0;
    completed_[value] = false;
  }

  std::size_t ranks_;
  std::size_t words_per_value_;
  bool may_repeat_;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> chunks_;
  std::vector<bool> completed_;
};

/// How a unit uses one cell, and what must have happened to the cell before that.
struct Access {
  std::uint32_t cell = kNone;
  std::uint32_t position = 0;  // in the list of the cell's users
  bool write = false;
};

/// Steps that run as one: a single step, or consecutive recv_reduce steps of a lane into one target (an n-way reduction).
struct Unit {
  int rank = 0;
  std::uint32_t first_part = 0;  // in parts_
  std::uint32_t part_count = 0;
  std::uint32_t tiles = 0;
  std::uint32_t done = 0;
  std::uint32_t at_once = 1;       // tiles, of those of a chunk
  std::uint32_t first_access = 0;  // in accesses_; two for each chunk: source, target
};

/// One step of a unit, and its position on its link.
struct Part {
  std::uint32_t step = 0;
  std::uint32_t link = kNone;
  std::uint32_t place = 0;
};

struct Link {
  std::vector<std::uint32_t> senders;    // units, in the order of the steps
  std::vector<std::uint32_t> receivers;  // units, in the order of the steps
  std::uint32_t next_send = 0;
  std::uint32_t next_recv = 0;
  bool full = false;  // a tile is in flight
};

struct User {
  std::uint32_t unit = 0;
  std::uint32_t reads_before = 0;  // since the last write before
  std::uint32_t writes_before = 0;
  std::uint32_t next_write = kNone;  // position of the next write after this use
  bool write = false;
};

struct Cell {
  std::vector<User> users;  // in program order: of one lane, or readers only
  std::uint32_t reads[kTilesPerChunk] = {};
  std::uint32_t writes[kTilesPerChunk] = {};
};

class Execution {
 public:
  Execution(const Schedule& schedule, Aliasing aliasing, std::size_t max_faults, std::vector<Fault>& faults)
      : schedule_(schedule),
        aliasing_(aliasing),
        max_faults_(max_faults),
        faults_(faults),
        map_(schedule, aliasing),
        cells_(map_.size()) {}

  void run() {
    for (const Program& program : schedule_.programs) {
      find_races(program);
      add_units(program);
    }
    if (!faults_.empty()) return;
    order_users();
    values_.emplace(map_.size() + links_.size(), schedule_.programs.size(),
                    schedule_.collective.kind == CollectiveKind::barrier);
    fill_inputs();
    for (std::uint32_t unit = 0; unit < units_.size(); ++unit) {
      ready_.push_back(unit);
      while (!ready_.empty()) {
        const std::uint32_t next = ready_.back();
        ready_.pop_back();
        while (can_run(next)) run_tile(next);
      }
    }
    find_deadlock();
    if (faults_.empty()) check_outputs();
  }

 private:
  [[nodiscard]] const Program& program_of(const Unit& unit) const {
    return schedule_.programs[static_cast<std::size_t>(unit.rank)];
  }
  [[nodiscard]] const Step& step_of(const Unit& unit) const { return program_of(unit).steps[parts_[unit.first_part].step]; }
  [[nodiscard]] std::string mode() const { return aliasing_ == Aliasing::in_place ? " (in place)" : ""; }

  void add(FaultKind kind, int rank, int step, int peer, int chunk, std::string message) {
    if (faults_.size() < max_faults_) faults_.push_back({kind, rank, step, peer, chunk, std::move(message) + mode()});
  }

  // Steps of different lanes are not ordered, so a chunk that one lane writes must not be used by another lane.
  void find_races(const Program& program) {
    struct Use {
      std::uint32_t step = kNone;
      std::uint32_t lane = 0;
    };
    struct Uses {
      Use write, read, read_elsewhere;  // last write, last read, last read by a lane other than that of `read`
    };
    const std::uint32_t base = map_.begin(program.rank);
    std::vector<Uses> uses(map_.end(program.rank) - base);
    const auto check = [&](std::uint32_t i, const Use& other) {
      const Step& step = program.steps[i];
      if (other.step == kNone || other.lane == step.lane) return;
      const int chunk = static_cast<int>(step.op == StepOp::send ? step.source.first_chunk : step.target.first_chunk);
      add(FaultKind::race, program.rank, static_cast<int>(i), step.peer, chunk,
          fmt::format("{} of lane {} races with {} of lane {}", describe_step(program, i), step.lane,
                      describe_step(program, other.step), other.lane));
    };
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
      const Step& step = program.steps[i];
      const bool reads = step.op != StepOp::recv;
      const bool writes = step.op != StepOp::send;
      const std::uint32_t source = reads ? map_.first(program.rank, step.source) : 0;
      const std::uint32_t target = writes ? map_.first(program.rank, step.target) : 0;
      if (reads && writes && source != target && source < target + step.target.chunk_count &&
          target < source + step.source.chunk_count) {
        add(FaultKind::race, program.rank, static_cast<int>(i), step.peer, static_cast<int>(step.target.first_chunk),
            fmt::format("{}: source and target overlap without being the same", describe_step(program, i)));
      }
      if (program.lanes == 1) continue;
      for (std::uint32_t k = 0; reads && k < step.source.chunk_count; ++k) {
        Uses& use = uses[source + k - base];
        check(i, use.write);
        if (use.read.step != kNone && use.read.lane != step.lane) use.read_elsewhere = use.read;
        use.read = {i, step.lane};
      }
      for (std::uint32_t k = 0; writes && k < step.target.chunk_count; ++k) {
        Uses& use = uses[target + k - base];
        check(i, use.write);
        check(i, use.read);
        check(i, use.read_elsewhere);
        use.write = {i, step.lane};
      }
    }
  }

  void add_units(const Program& program) {
    const std::vector<std::uint32_t> unit_of_step = units_of_steps(schedule_.topology, program);
    const auto first_unit = static_cast<std::uint32_t>(units_.size());
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
      if (first_unit + unit_of_step[i] == units_.size()) add_unit(program, i);
      ++units_[first_unit + unit_of_step[i]].part_count;
    }
    // The parts of a unit are adjacent in parts_, although steps of other lanes may lie between them in the Program.
    for (std::size_t unit = first_unit; unit < units_.size(); ++unit) {
      units_[unit].first_part = static_cast<std::uint32_t>(parts_.size());
      parts_.resize(parts_.size() + units_[unit].part_count);
      units_[unit].part_count = 0;
    }
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
      Unit& unit = units_[first_unit + unit_of_step[i]];
      Part& part = parts_[unit.first_part + unit.part_count++];
      part.step = i;
      join_link(program, first_unit + unit_of_step[i], part);
    }
  }

  void add_unit(const Program& program, std::uint32_t i) {
    const Step& step = program.steps[i];
    const bool reads = step.op != StepOp::recv;
    const bool writes = step.op != StepOp::send;
    const std::uint32_t chunks = writes ? step.target.chunk_count : step.source.chunk_count;
    const auto index = static_cast<std::uint32_t>(units_.size());
    Unit unit;
    unit.rank = program.rank;
    unit.tiles = chunks * kTilesPerChunk;
    const bool over_network = step.peer >= 0 && schedule_.topology.link_class(program.rank, step.peer) == LinkClass::network;
    if (over_network && !program.folds_across_links) unit.at_once = kTilesPerChunk;
    unit.first_access = static_cast<std::uint32_t>(accesses_.size());
    for (std::uint32_t k = 0; k < chunks; ++k) {
      const std::uint32_t source = reads ? map_.first(program.rank, step.source) + k : kNone;
      const std::uint32_t target = writes ? map_.first(program.rank, step.target) + k : kNone;
      accesses_.push_back(use(index, source == target ? kNone : source, false));
      accesses_.push_back(use(index, target, true));
    }
    units_.push_back(unit);
  }

  Access use(std::uint32_t unit, std::uint32_t cell, bool write) {
    if (cell == kNone) return {};
    auto& users = cells_[cell].users;
    users.push_back({unit, 0, 0, kNone, write});
    return {cell, static_cast<std::uint32_t>(users.size() - 1), write};
  }

  void join_link(const Program& program, std::uint32_t unit, Part& part) {
    const Step& step = program.steps[part.step];
    if (step.peer < 0) return;
    const bool sends = step.op == StepOp::send;
    const auto ends = sends ? std::pair{program.rank, step.peer} : std::pair{step.peer, program.rank};
    const auto [it, is_new] = link_of_.try_emplace(ends, static_cast<std::uint32_t>(links_.size()));
    if (is_new) links_.emplace_back();
    part.link = it->second;
    auto& units = sends ? links_[part.link].senders : links_[part.link].receivers;
    part.place = static_cast<std::uint32_t>(units.size());
    units.push_back(unit);
  }

  // Users of a cell are in program order; each waits for the writes before it, a write also for the reads before it.
  void order_users() {
    for (Cell& cell : cells_) {
      std::uint32_t reads = 0;
      std::uint32_t writes = 0;
      for (User& user : cell.users) {
        user.reads_before = reads;
        user.writes_before = writes;
        ++(user.write ? writes : reads);
      }
      std::uint32_t next_write = kNone;
      for (std::uint32_t i = static_cast<std::uint32_t>(cell.users.size()); i-- > 0;) {
        cell.users[i].next_write = next_write;
        if (cell.users[i].write) next_write = i;
      }
    }
  }

  void fill_inputs() {
    const CollectiveKind kind = schedule_.collective.kind;
    for (const Program& program : schedule_.programs) {
      const std::uint32_t inputs = map_.first(program.rank, {Buffer::input, 0, 0});
      const ChunkRun run = map_.inputs(program.rank);
      for (std::uint32_t i = 0; i < run.count; ++i) values_->set(inputs + i, program.rank, run.first + i);
      const bool starts_in_output =
          kind == CollectiveKind::barrier || (kind == CollectiveKind::broadcast && program.rank == schedule_.collective.root);
      const std::uint32_t outputs = map_.first(program.rank, {Buffer::output, 0, 0});
      for (std::uint32_t i = 0; starts_in_output && i < program.message_chunks; ++i) values_->set(outputs + i, program.rank, i);
    }
  }

  [[nodiscard]] bool cell_is_free(const Access& access, std::uint32_t tile) const {
    if (access.cell == kNone) return true;
    const Cell& cell = cells_[access.cell];
    const User& user = cell.users[access.position];
    return cell.writes[tile] >= user.writes_before && (!access.write || cell.reads[tile] >= user.reads_before);
  }

  [[nodiscard]] bool link_is_free(const Unit& unit, const Part& part) const {
    if (part.link == kNone) return true;
    const Link& link = links_[part.link];
    if (step_of(unit).op == StepOp::send) return !link.full && link.next_send == part.place;
    return link.full && link.next_recv == part.place;
  }

  [[nodiscard]] bool can_run(std::uint32_t index) const {
    const Unit& unit = units_[index];
    if (unit.done == unit.tiles) return false;
    const std::uint32_t access = unit.first_access + unit.done / kTilesPerChunk * 2;
    for (std::uint32_t i = 0; i < unit.at_once; ++i) {
      const std::uint32_t tile = unit.done % kTilesPerChunk + i;
      if (!cell_is_free(accesses_[access], tile) || !cell_is_free(accesses_[access + 1], tile)) return false;
    }
    for (std::uint32_t i = 0; i < unit.part_count; ++i) {
      if (!link_is_free(unit, parts_[unit.first_part + i])) return false;
    }
    return true;
  }

  void run_tile(std::uint32_t index) {
    Unit& unit = units_[index];
    const std::uint32_t chunk = unit.done / kTilesPerChunk;
    const std::uint32_t tile = unit.done % kTilesPerChunk;
    if (tile == 0) move_values(unit, chunk);
    unit.done += unit.at_once;
    const bool ended = unit.done == unit.tiles;
    for (std::uint32_t i = 0; i < unit.part_count; ++i) {
      const Part& part = parts_[unit.first_part + i];
      if (part.link == kNone) continue;
      Link& link = links_[part.link];
      if (step_of(unit).op == StepOp::send) {
        link.full = true;
        if (ended) ++link.next_send;
        ready_.push_back(link.receivers[link.next_recv]);
      } else {
        link.full = false;
        if (ended) ++link.next_recv;
        if (link.next_send < link.senders.size()) ready_.push_back(link.senders[link.next_send]);
      }
    }
    const std::uint32_t access = unit.first_access + chunk * 2;
    for (std::uint32_t i = 0; i < unit.at_once; ++i) {
      finish_use(accesses_[access], tile + i);
      finish_use(accesses_[access + 1], tile + i);
    }
  }

  void finish_use(const Access& access, std::uint32_t tile) {
    if (access.cell == kNone) return;
    Cell& cell = cells_[access.cell];
    ++(access.write ? cell.writes : cell.reads)[tile];
    const std::uint32_t next_write = cell.users[access.position].next_write;
    const std::uint32_t last = next_write == kNone ? static_cast<std::uint32_t>(cell.users.size()) - 1 : next_write;
    // A write unblocks the reads up to the next write; a read can only unblock that write.
    for (std::uint32_t i = access.write ? access.position + 1 : last; i <= last; ++i) ready_.push_back(cell.users[i].unit);
  }

  void move_values(const Unit& unit, std::uint32_t chunk) {
    const Step& step = step_of(unit);
    const std::uint32_t source = step.op == StepOp::recv ? kNone : map_.first(unit.rank, step.source) + chunk;
    const std::uint32_t target = step.op == StepOp::send ? kNone : map_.first(unit.rank, step.target) + chunk;
    switch (step.op) {
      case StepOp::send:
        read(unit, source, step.source, chunk);
        values_->assign(link_value(unit.first_part), source);
        break;
      case StepOp::recv:
        values_->assign(target, link_value(unit.first_part));
        break;
      case StepOp::recv_reduce:
        read(unit, source, step.source, chunk);
        values_->assign(target, source);
        for (std::uint32_t i = 0; i < unit.part_count; ++i) fold(unit, i, target, link_value(unit.first_part + i));
        complete(unit, target);
        break;
      case StepOp::copy:
        read(unit, source, step.source, chunk);
        values_->assign(target, source);
        break;
      case StepOp::reduce:
        read(unit, source, step.source, chunk);
        read(unit, target, step.target, chunk);
        fold(unit, 0, target, source);
        complete(unit, target);
        break;
    }
  }

  void complete(const Unit& unit, std::size_t target) {
    const std::uint32_t last = parts_[unit.first_part + unit.part_count - 1].step;
    if (!program_of(unit).steps[last].completes) return;
    const std::string complaint = values_->complete(target);
    if (complaint.empty()) return;
    values_->spoil(target);
    spoilt_by_.push_back(fmt::format("{} {}", describe_step(program_of(unit), last), complaint));
  }

  [[nodiscard]] std::size_t link_value(std::uint32_t part) const { return map_.size() + parts_[part].link; }

  void read(const Unit& unit, std::uint32_t cell, const Slice& slice, std::uint32_t chunk) {
    if (!values_->undefined(cell)) return;
    const std::uint32_t step = parts_[unit.first_part].step;
    const auto at = slice.first_chunk + chunk;
    add(FaultKind::undefined_read, unit.rank, static_cast<int>(step), step_of(unit).peer, static_cast<int>(at),
        fmt::format("{} reads chunk {}, which nothing has written", describe_step(program_of(unit), step), at));
    values_->spoil(cell);
  }

  void fold(const Unit& unit, std::uint32_t part, std::size_t target, std::size_t source) {
    const std::string complaint = values_->fold(target, source);
    if (complaint.empty()) return;
    const std::uint32_t step = parts_[unit.first_part + part].step;
    spoilt_by_.push_back(fmt::format("{} {}", describe_step(program_of(unit), step), complaint));
  }

  // Follows the waits-for relation from the first unit that has not ended, until a unit occurs a second time.
  void find_deadlock() {
    std::uint32_t stuck = 0;
    while (stuck < units_.size() && units_[stuck].done == units_[stuck].tiles) ++stuck;
    if (stuck == units_.size()) return;
    std::map<std::uint32_t, std::size_t> seen;
    std::vector<std::uint32_t> path;
    while (seen.try_emplace(stuck, path.size()).second) {
      path.push_back(stuck);
      stuck = blocker(stuck);
    }
    std::string message;
    const std::size_t first = seen[stuck];
    for (std::size_t i = first; i < std::min(path.size(), first + kMaxNamedWaiters); ++i)
      message += describe_unit(path[i]) + " waits for ";
    if (path.size() - first > kMaxNamedWaiters)
      message += fmt::format("{} more steps, which wait for ", path.size() - first - kMaxNamedWaiters);
    message += describe_unit(stuck);
    const Unit& unit = units_[stuck];
    const Step& step = step_of(unit);
    const Slice& slice = step.op == StepOp::send ? step.source : step.target;
    add(FaultKind::deadlock, unit.rank, static_cast<int>(parts_[unit.first_part].step), step.peer,
        static_cast<int>(slice.first_chunk + unit.done / kTilesPerChunk), message);
  }

  [[nodiscard]] std::string describe_unit(std::uint32_t unit) const {
    return describe_step(program_of(units_[unit]), parts_[units_[unit].first_part].step);
  }

  /// A unit that must move before `index` can.
  [[nodiscard]] std::uint32_t blocker(std::uint32_t index) const {
    const Unit& unit = units_[index];
    for (std::uint32_t i = 0; i < 2 * unit.at_once; ++i) {
      const std::uint32_t tile = unit.done % kTilesPerChunk + i / 2;
      const Access& access = accesses_[unit.first_access + unit.done / kTilesPerChunk * 2 + i % 2];
      if (cell_is_free(access, tile)) continue;
      const Cell& cell = cells_[access.cell];
      for (std::uint32_t k = 0; k < access.position; ++k) {
        if (!tile_is_done(cell.users[k].unit, access.cell, tile) && (access.write || cell.users[k].write))
          return cell.users[k].unit;
      }
    }
    for (std::uint32_t i = 0; i < unit.part_count; ++i) {
      const Part& part = parts_[unit.first_part + i];
      if (link_is_free(unit, part)) continue;
      const Link& link = links_[part.link];
      if (step_of(unit).op == StepOp::send) {
        return link.next_send == part.place ? link.receivers[link.next_recv] : link.senders[link.next_send];
      }
      return link.next_recv == part.place ? link.senders[link.next_send] : link.receivers[link.next_recv];
    }
    return index;
  }

  [[nodiscard]] bool tile_is_done(std::uint32_t index, std::uint32_t cell, std::uint32_t tile) const {
    const Unit& unit = units_[index];
    for (std::uint32_t i = 0; i < unit.tiles / kTilesPerChunk * 2; ++i) {
      if (accesses_[unit.first_access + i].cell == cell) return unit.done > i / 2 * kTilesPerChunk + tile;
    }
    return true;
  }

  void check_outputs() {
    for (const Program& program : schedule_.programs) {
      for (std::uint32_t chunk = 0; chunk < map_.outputs(program.rank).count; ++chunk) check_output(program.rank, chunk);
    }
  }

  void check_output(int rank, std::uint32_t chunk) {
    const std::uint32_t cell = map_.first(rank, {Buffer::output, chunk, 1});
    std::string problem;
    if (values_->undefined(cell)) {
      problem = "is never written";
    } else if (values_->spoilt(cell)) {
      problem = "is spoilt: " + (spoilt_by_.empty() ? std::string("it holds an undefined value") : spoilt_by_.front());
    } else if (values_->chunk(cell) != expected_chunk(rank, chunk)) {
      problem = fmt::format("holds chunk {} and not {}", values_->chunk(cell), expected_chunk(rank, chunk));
    } else {
      for (int r = 0; r < static_cast<int>(schedule_.programs.size()) && problem.empty(); ++r) {
        if (values_->holds(cell, r) == expected(rank, chunk, r)) continue;
        problem = fmt::format("{} the contribution of rank {}", expected(rank, chunk, r) ? "lacks" : "holds", r);
      }
      const bool average = reduces(schedule_.collective.kind) && schedule_.collective.op == ReduceOp::avg;
      if (problem.empty() && average && schedule_.programs.size() > 1 && !values_->completed(cell)) problem = "is not divided";
    }
    if (problem.empty()) return;
    add(FaultKind::wrong_result, rank, -1, -1, static_cast<int>(chunk),
        fmt::format("rank {} output[{}] {}", rank, chunk, problem));
  }

  /// The message chunk that the output's `chunk` on `rank` consists of.
  [[nodiscard]] std::uint32_t expected_chunk(int rank, std::uint32_t chunk) const {
    if (schedule_.collective.kind != CollectiveKind::all_to_all) return map_.outputs(rank).first + chunk;
    // In an all_to_all, every sender sends its block for this rank.
    return static_cast<std::uint32_t>(rank) * chunks_per_share() + chunk % chunks_per_share();
  }

  /// Whether the output's `chunk` on `rank` must hold a contribution of rank `giver`.
  [[nodiscard]] bool expected(int rank, std::uint32_t chunk, int giver) const {
    switch (schedule_.collective.kind) {
      case CollectiveKind::all_reduce:
      case CollectiveKind::barrier:
      case CollectiveKind::reduce_scatter:
      case CollectiveKind::reduce:
        return true;
      case CollectiveKind::broadcast:
      case CollectiveKind::scatter:
        return giver == schedule_.collective.root;
      case CollectiveKind::all_gather:
      case CollectiveKind::gather:
      case CollectiveKind::all_to_all:
        return (map_.outputs(rank).first + chunk) / chunks_per_share() == static_cast<std::uint32_t>(giver);
      case CollectiveKind::send:
      case CollectiveKind::receive:
        break;
    }
    return false;
  }

  [[nodiscard]] std::uint32_t chunks_per_share() const {
    return schedule_.programs.front().message_chunks / static_cast<std::uint32_t>(schedule_.programs.size());
  }

  const Schedule& schedule_;
  Aliasing aliasing_;
  std::size_t max_faults_;
  std::vector<Fault>& faults_;
  CellMap map_;
  std::vector<Cell> cells_;
  std::vector<Unit> units_;
  std::vector<Part> parts_;
  std::vector<Access> accesses_;
  std::map<std::pair<int, int>, std::uint32_t> link_of_;
  std::vector<Link> links_;
  std::optional<Values> values_;
  std::vector<std::uint32_t> ready_;
  std::vector<std::string> spoilt_by_;
};

}  // namespace

void execute_on_symbols(const Schedule& schedule, Aliasing aliasing, std::size_t max_faults, std::vector<Fault>& faults) {
  Execution(schedule, aliasing, max_faults, faults).run();
}

}  // namespace shoal
