#include "src/schedule/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "src/schedule/describe.h"
#include "src/schedule/execution.h"
#include "src/schedule/layout.h"

namespace shoal {
namespace {

constexpr std::size_t kMaxFaults = 20;

bool has_peer(StepOp op) { return op == StepOp::send || op == StepOp::recv || op == StepOp::recv_reduce; }
bool has_source(StepOp op) { return op != StepOp::recv; }
bool has_target(StepOp op) { return op != StepOp::send; }

/// The checks that look at single steps and at pairs of a send and its receive.
class StaticCheck {
 public:
  StaticCheck(const Schedule& schedule, std::vector<Fault>& faults) : schedule_(schedule), faults_(faults) {}

  void run() {
    check_headers();
    if (!faults_.empty()) return;  // the checks below rely on valid headers
    for (const Program& program : schedule_.programs) {
      layouts_.emplace_back(schedule_.collective_of(program.rank), ranks(), program.rank, program.message_chunks);
    }
    for (const Program& program : schedule_.programs) check_steps(program);
    if (faults_.empty()) check_links();
  }

 private:
  [[nodiscard]] int ranks() const { return schedule_.topology.ranks(); }

  void add(FaultKind kind, const Program& program, int step, int peer, int chunk, std::string_view what) {
    if (faults_.size() >= kMaxFaults) return;
    const std::string place =
        step >= 0 ? describe_step(program, static_cast<std::size_t>(step)) : fmt::format("rank {}", program.rank);
    faults_.push_back({kind, program.rank, step, peer, chunk, fmt::format("{}: {}", place, what)});
  }

  void check_headers() {
    if (ranks() < 1 || schedule_.programs.size() != static_cast<std::size_t>(ranks())) {
      faults_.push_back(
          {FaultKind::malformed, -1, -1, -1, -1, fmt::format("{} Programs for {} ranks", schedule_.programs.size(), ranks())});
      return;
    }
    const std::uint32_t chunks = schedule_.programs.front().message_chunks;
    for (int rank = 0; rank < ranks(); ++rank) {
      const Program& program = schedule_.programs[static_cast<std::size_t>(rank)];
      if (program.rank != rank)
        add(FaultKind::malformed, program, -1, -1, -1, fmt::format("is stored at the index of rank {}", rank));
      if (program.message_chunks != chunks || chunks == 0) {
        add(FaultKind::malformed, program, -1, -1, -1,
            fmt::format("cuts the message into {} chunks, rank 0 into {}", program.message_chunks, chunks));
      }
      if (program.folds_across_links != schedule_.programs.front().folds_across_links)
        add(FaultKind::malformed, program, -1, -1, -1, "folds_across_links differs from rank 0");
      if (deals_in_shares(schedule_.collective.kind) && chunks % static_cast<std::uint32_t>(ranks()) != 0) {
        add(FaultKind::malformed, program, -1, -1, -1, fmt::format("{} chunks are no multiple of {} ranks", chunks, ranks()));
      }
    }
  }

  [[nodiscard]] std::uint32_t chunks_of(const Program& program, Buffer buffer) const {
    if (buffer == Buffer::scratch) return program.scratch_chunks;
    return chunks_in(schedule_.collective, buffer, ranks(), program.rank, program.message_chunks).count;
  }

  void check_steps(const Program& program) {
    for (std::size_t i = 0; i < program.steps.size(); ++i) {
      const Step& step = program.steps[i];
      const int at = static_cast<int>(i);
      if (step.op > StepOp::reduce) {
        add(FaultKind::malformed, program, at, step.peer, -1, "unknown op");
        continue;
      }
      const bool peer_ok =
          has_peer(step.op) ? step.peer >= 0 && step.peer < ranks() && step.peer != program.rank : step.peer == -1;
      if (!peer_ok) add(FaultKind::malformed, program, at, step.peer, -1, fmt::format("peer {} is not valid", step.peer));
      if (step.lane >= program.lanes) {
        add(FaultKind::malformed, program, at, step.peer, -1, fmt::format("lane {} of {} lanes", step.lane, program.lanes));
      }
      bool in_range = true;
      if (has_source(step.op)) in_range = check_range(program, at, step.source) && in_range;
      if (has_target(step.op)) in_range = check_range(program, at, step.target) && in_range;
      if (has_target(step.op) && step.target.buffer == Buffer::input) {
        add(FaultKind::input_written, program, at, step.peer, static_cast<int>(step.target.first_chunk), "writes the input");
      }
      if (step.completes && step.op != StepOp::recv_reduce && step.op != StepOp::reduce)
        add(FaultKind::malformed, program, at, step.peer, -1, "is marked `completes` but does not fold");
      if (in_range && has_source(step.op) && has_target(step.op)) check_source_and_target(program, at);
    }
  }

  bool check_range(const Program& program, int at, const Slice& slice) {
    const std::uint32_t chunks = slice.buffer <= Buffer::scratch ? chunks_of(program, slice.buffer) : 0;
    const auto malformed = [&](const std::string& what) {
      add(FaultKind::malformed, program, at, program.steps[static_cast<std::size_t>(at)].peer,
          static_cast<int>(slice.first_chunk), fmt::format("{} {}", to_string(slice), what));
      return false;
    };
    if (slice.chunk_count == 0 || std::uint64_t{slice.first_chunk} + slice.chunk_count > chunks)
      return malformed(fmt::format("is not in a buffer of {} chunks", chunks));
    if (slice.buffer != Buffer::scratch) return slice.holds == 0 || malformed("names a chunk that it holds");
    if (std::uint64_t{slice.holds} + slice.chunk_count > program.message_chunks)
      return malformed(fmt::format("holds more than the {} chunks of the message", program.message_chunks));
    const ChunkLayout& layout = layouts_[static_cast<std::size_t>(program.rank)];
    if (slice.chunk_count > 1 && layout.bytes(slice).size_bytes != slice.chunk_count * layout.scratch_chunk_bytes())
      return malformed("has chunks smaller than their scratch places, so they are not contiguous");
    return true;
  }

  void check_source_and_target(const Program& program, int at) {
    const Step& step = program.steps[static_cast<std::size_t>(at)];
    const std::string difference = compare(program.rank, step.source, program.rank, step.target);
    if (!difference.empty()) {
      add(FaultKind::size_mismatch, program, at, step.peer, static_cast<int>(step.target.first_chunk),
          "source and target " + difference);
    }
  }

  /// Empty, or how two slices that must hold the same bytes differ.
  [[nodiscard]] std::string compare(int rank_a, Slice a, int rank_b, Slice b) const {
    if (a.chunk_count != b.chunk_count) return fmt::format("differ in chunks, {} and {}", a.chunk_count, b.chunk_count);
    const std::uint32_t count = std::exchange(a.chunk_count, 1);
    b.chunk_count = 1;
    const auto advance = [](Slice& slice) {
      ++slice.first_chunk;
      if (slice.buffer == Buffer::scratch) ++slice.holds;
    };
    for (std::uint32_t i = 0; i < count; ++i, advance(a), advance(b)) {
      const std::size_t a_bytes = layouts_[static_cast<std::size_t>(rank_a)].bytes(a).size_bytes;
      const std::size_t b_bytes = layouts_[static_cast<std::size_t>(rank_b)].bytes(b).size_bytes;
      if (a_bytes != b_bytes)
        return fmt::format("differ in bytes, {} of {} and {} of {}", to_string(a), a_bytes, to_string(b), b_bytes);
    }
    return "";
  }

  void check_links() {
    // (sender, receiver) -> steps of the sender, steps of the receiver
    std::map<std::pair<int, int>, std::pair<std::vector<int>, std::vector<int>>> links;
    for (const Program& program : schedule_.programs) {
      for (std::size_t i = 0; i < program.steps.size(); ++i) {
        const Step& step = program.steps[i];
        if (step.op == StepOp::send) links[{program.rank, step.peer}].first.push_back(static_cast<int>(i));
        if (step.op == StepOp::recv || step.op == StepOp::recv_reduce) {
          links[{step.peer, program.rank}].second.push_back(static_cast<int>(i));
        }
      }
    }
    for (const auto& [ends, steps] : links) check_link(ends.first, ends.second, steps.first, steps.second);
  }

  void check_link(int from, int to, const std::vector<int>& sends, const std::vector<int>& recvs) {
    const Program& sender = schedule_.programs[static_cast<std::size_t>(from)];
    const Program& receiver = schedule_.programs[static_cast<std::size_t>(to)];
    const std::size_t both = std::min(sends.size(), recvs.size());
    for (std::size_t k = 0; k < both; ++k) {
      const Slice& source = sender.steps[static_cast<std::size_t>(sends[k])].source;
      const Slice& target = receiver.steps[static_cast<std::size_t>(recvs[k])].target;
      const std::string difference = compare(from, source, to, target);
      if (difference.empty()) continue;
      add(FaultKind::size_mismatch, sender, sends[k], to, static_cast<int>(source.first_chunk),
          fmt::format("is matched with {}; they {}", describe_step(receiver, static_cast<std::size_t>(recvs[k])), difference));
    }
    if (sends.size() > both) {
      add(FaultKind::unmatched, sender, sends[both], to, -1,
          fmt::format("rank {} has {} receives for {} sends", to, recvs.size(), sends.size()));
    }
    if (recvs.size() > both) {
      add(FaultKind::unmatched, receiver, recvs[both], from, -1,
          fmt::format("rank {} has {} sends for {} receives", from, sends.size(), recvs.size()));
    }
  }

  const Schedule& schedule_;
  std::vector<Fault>& faults_;
  std::vector<ChunkLayout> layouts_;
};

}  // namespace

std::string_view to_string(FaultKind kind) noexcept {
  switch (kind) {
    case FaultKind::malformed:
      return "malformed";
    case FaultKind::input_written:
      return "input_written";
    case FaultKind::unmatched:
      return "unmatched";
    case FaultKind::size_mismatch:
      return "size_mismatch";
    case FaultKind::race:
      return "race";
    case FaultKind::undefined_read:
      return "undefined_read";
    case FaultKind::deadlock:
      return "deadlock";
    case FaultKind::wrong_result:
      return "wrong_result";
  }
  return "?";
}

std::vector<Fault> verify(const Schedule& schedule) {
  std::vector<Fault> faults;
  StaticCheck(schedule, faults).run();
  if (!faults.empty()) return faults;
  execute_on_symbols(schedule, Aliasing::out_of_place, kMaxFaults, faults);
  const CollectiveKind kind = schedule.collective.kind;
  const bool has_in_place =
      kind != CollectiveKind::broadcast && kind != CollectiveKind::barrier && kind != CollectiveKind::all_to_all;
  if (has_in_place && faults.empty()) execute_on_symbols(schedule, Aliasing::in_place, kMaxFaults, faults);
  return faults;
}

Status to_status(const std::vector<Fault>& faults) {
  if (faults.empty()) return {};
  std::string message = fmt::format("{}: {}", to_string(faults.front().kind), faults.front().message);
  if (faults.size() > 1) message += fmt::format(" (and {} more faults)", faults.size() - 1);
  return {StatusCode::internal, message};
}

}  // namespace shoal
